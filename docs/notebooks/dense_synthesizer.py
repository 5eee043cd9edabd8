# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The dense synthesizer from scratch
#
# From the equations of "Synthesizer: Rethinking Self-Attention in Transformer Models" (arXiv 2005.00743) to the layer
# of this package. You need PyTorch, matplotlib, and to know what attention is. It runs in a few minutes on a CPU.

# %%
import warnings

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn import functional as F

from synthetic_attention import SynthesizerAttention

torch.manual_seed(0)
plt.rcParams["figure.dpi"] = 72

# %% [markdown]
# ## Attention, in one line
#
# Every attention layer computes Y = softmax(S(X)) V: each token takes a weighted mean of the values of all tokens. The
# variants differ in the logits S(X), a matrix of one row per query and one column per key.
#
# - Dot products: S(X)ᵢⱼ = (W_Q Xᵢ) · (W_K Xⱼ) / √k. A weight depends on both tokens.
# - Dense: S(X)ᵢ = W₂ relu(W₁ Xᵢ + b₁) + b₂. A row depends on its own token alone, and column j means *position* j.
# - Random: S(X) = R. The weights depend on no token at all.
#
# ## One head of fifteen lines


# %%
class DenseHead(nn.Module):
    """One head of dense synthesized attention, (B, L, d) to (B, L, d)."""

    def __init__(self, d_model: int, max_length: int) -> None:
        super().__init__()
        self.linear1 = nn.Linear(d_model, d_model)
        self.linear2 = nn.Linear(d_model, max_length)
        self.value = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, d_model)

    def weights(self, x: torch.Tensor, is_causal: bool = False) -> torch.Tensor:
        length = x.shape[1]
        logits = self.linear2(self.linear1(x).relu())[..., :length]
        if is_causal:
            logits = logits.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
        return logits.softmax(dim=-1)

    def forward(self, x: torch.Tensor, is_causal: bool = False) -> torch.Tensor:
        return self.output(self.weights(x, is_causal) @ self.value(x))


head = DenseHead(d_model=16, max_length=12)
x = torch.randn(2, 10, 16)
print(tuple(head(x).shape))

# %% [markdown]
# `linear1` is d×d and `linear2` is d×N. Together they are an MLP that writes a row of L logits for each token. The
# attention is what follows: the softmax of this row weighs the values of *all* tokens.
#
# ## Is it only an MLP?
#
# Change one token, number 7, and see which outputs change.

# %%
changed = x.clone()
changed[:, 7] = torch.randn(2, 16)


def moved(function: nn.Module) -> list[int]:
    """The tokens whose output differs between x and the changed x."""
    return ((function(x) - function(changed)).abs().amax(dim=(0, 2)) > 1e-6).nonzero().flatten().tolist()


mlp = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
print("an MLP:", moved(mlp))
print("dense attention:", moved(head))
weight_change = (head.weights(x) - head.weights(changed)).abs().amax(dim=(0, 2))
print("rows of weights:", (weight_change > 1e-6).nonzero().flatten().tolist())

# %% [markdown]
# An MLP sees each token alone. Dense attention mixes tokens: all outputs change, because all of them look at token 7.
# But only the row of token 7 itself has other weights. Dot products would change all rows.
#
# ## The trap of `F.softmax` without `dim`
#
# Without `dim`, PyTorch takes dimension 0 of a tensor of three dimensions: the weights of a *batch* add up to 1, not
# those of a row. The code runs, and the model learns little.

# %%
logits = torch.randn(2, 4, 4)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    wrong = F.softmax(logits)
print("sum of a row, dim left out:", wrong.sum(dim=-1)[0, :2].tolist())
print("sum over the batch:        ", wrong.sum(dim=0)[0, :2].tolist())
print("sum of a row, dim=-1:      ", F.softmax(logits, dim=-1).sum(dim=-1)[0, :2].tolist())

# %% [markdown]
# ## The same as the layer of this package
#
# `SynthesizerAttention(…, synthesizer="dense")` has these parameters under other names; its W₂ is a learned *key* for
# each position. With the weights copied, one head gives the same numbers.

# %%
layer = SynthesizerAttention(d_model=16, num_heads=1, synthesizer="dense", max_length=12)
for name, parameter in layer.named_parameters():
    print(f"{name:24}{tuple(parameter.shape)}")

# %%
with torch.no_grad():
    function = layer.function
    for mine, theirs in ((head.linear1, function.q_proj), (head.value, layer.v_proj), (head.output, layer.out_proj)):
        theirs.load_state_dict(mine.state_dict())
    function.key.copy_(head.linear2.weight[None])
    function.key_bias.copy_(head.linear2.bias[None])
for is_causal in (False, True):
    torch.testing.assert_close(layer(x, is_causal=is_causal), head(x, is_causal))
print("equal, causal or not")

# %% [markdown]
# Why keys? relu(W₁ X) is a query, W₂ a key per position, so PyTorch's fused kernels compute it without an L×L matrix in
# memory. No key is computed from the input, and none is kept when generating.
#
# ## Several heads, masks, and the other variants
#
# The layer has what a model needs: several heads, padding on either side, causal masks, mixtures. The last column says
# which rows of weights change if token 7 changes, as above.

# %%
VARIANTS = ("vanilla", "dense", "random", "factorized_dense", "factorized_random", "random+vanilla")
print(f"{'':20}{'parameters of the weights':>28}   rows of weights that change")
layers = {}
for name in VARIANTS:
    torch.manual_seed(0)
    layers[name] = each = SynthesizerAttention(16, 2, synthesizer=name, max_length=12).eval()
    with torch.no_grad():
        # Mixtures start near plain dot products: draw R as large as it is after training.
        for key, parameter in each.named_parameters():
            if key.endswith("table"):
                parameter.normal_()
        before, after = (each(each_x, need_weights=True)[1] for each_x in (x, changed))
    rows = ((before - after).abs().amax(dim=(0, 1, 3)) > 1e-6).nonzero().flatten().tolist()
    print(f"{name:20}{each.weight_parameters:>28,}   {rows}")

# %% [markdown]
# ## What dense attention can learn, and what it cannot
#
# Two tasks on random sequences of eight symbols:
#
# 1. *Shift*: write the symbol three places before. The place is known, so weights by position suffice.
# 2. *What followed*: write the symbol that follows the earlier occurrence of the current one. Where that
#    is depends on the other tokens.


# %%
SYMBOLS, LENGTH = 8, 16


def batch(task: str, size: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets (size, LENGTH); −100 where there is nothing to write."""
    inputs = torch.randint(SYMBOLS, (size, LENGTH))
    targets = torch.full_like(inputs, -100)
    if task == "shift":
        targets[:, 3:] = inputs[:, :-3]
        return inputs, targets
    # Two halves with the eight symbols, in two orders: each is found once in the first half.
    first = torch.stack([torch.randperm(SYMBOLS) for _ in range(size)])
    second = torch.stack([torch.randperm(SYMBOLS) for _ in range(size)])
    inputs = torch.cat((first, second), dim=1)
    following = first.roll(-1, dims=1)
    place = (second[:, :, None] == first[:, None, :]).long().argmax(-1)
    targets[:, SYMBOLS:] = following.gather(1, place)
    return inputs, targets


class Tagger(nn.Module):
    """Two layers of attention, each with an MLP."""

    def __init__(self, synthesizer: str, width: int = 64) -> None:
        super().__init__()
        self.symbols, self.positions = nn.Embedding(SYMBOLS, width), nn.Embedding(LENGTH, width)
        self.attention = nn.ModuleList(
            SynthesizerAttention(width, 4, synthesizer=synthesizer, max_length=LENGTH) for _ in range(2)
        )
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, width))
            for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.output = nn.Linear(width, SYMBOLS)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        x = self.symbols(inputs) + self.positions.weight
        for attention, mlp, norm in zip(self.attention, self.mlp, self.norms, strict=True):
            x = x + attention(norm(x), is_causal=True)
            x = x + mlp(x)
        return self.output(x)


def accuracy(synthesizer: str, task: str, steps: int = 400) -> tuple[float, Tagger]:
    """The share of right symbols in 512 new sequences after a training."""
    torch.manual_seed(0)
    model = Tagger(synthesizer)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        inputs, targets = batch(task)
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    inputs, targets = batch(task, 512)
    with torch.no_grad():
        right = model(inputs).argmax(-1) == targets
    return right[targets != -100].float().mean().item(), model


trained = {}
print(f"{'':18}{'shift':>10}{'what followed':>16}")
for name in ("vanilla", "dense", "random", "random+vanilla"):
    found = [accuracy(name, task) for task in ("shift", "what followed")]
    trained[name] = found[0][1]
    print(f"{name:18}{found[0][0]:>10.0%}{found[1][0]:>16.0%}")

# %% [markdown]
# All variants learn the shift. The second task needs to compare tokens: dense and random attention stay far below dot
# products, and the mixture with dot products learns it. (One seed, one size: try others.)
#
# ## What it looks like
#
# The attention of the first layer after the shift, one row per query. A bright line three places below the diagonal is
# the solution.

# %%
inputs, _ = batch("shift", 1)
figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
for axis, name in zip(axes, ("vanilla", "dense", "random"), strict=True):
    model = trained[name]
    with torch.no_grad():
        x = model.norms[0](model.symbols(inputs) + model.positions.weight)
        weights = model.attention[0](x, is_causal=True, need_weights=True)[1][0]
    # The head that looks most at three places before.
    best = weights.diagonal(-3, dim1=-2, dim2=-1).mean(-1).argmax()
    axis.imshow(weights[best], vmin=0, vmax=1)
    axis.set(title=name, xlabel="key", ylabel="query")
plt.show()

# %% [markdown]
# ## From here
#
# - The plain equations of all variants: `synthetic_attention.reference`.
# - Replace the attention of a model that you have: [replacing attention](../replacing.md).
# - Which variant to use: [choosing](../choosing.md). What the paper claims and what was found: [claims](../claims.md).
