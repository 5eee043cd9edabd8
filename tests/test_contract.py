"""What every synthesizing function owes, whatever it computes. A new function is one more entry of layers.FUNCTIONS.

Every axis has a prime of its own, so that a transposed one cannot hide.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from layers import FUNCTIONS, GROUPS, MIXTURES
from synthetic_attention import SynthesizerAttention
from synthetic_attention.synthesizers import REGISTRY, default_options, functions_of, known, needs_max_length

NAMES = [*FUNCTIONS, *MIXTURES, *GROUPS]
B, T, D, HEAD, MAXIMUM, RANK = 2, 11, 7, 5, 13, 3

# Functions that ignore the input.
INPUT_FREE = [name for name in NAMES if not any(REGISTRY[part].num_features for part in functions_of(name))]
BOUNDED = [name for name in NAMES if needs_max_length(name)]


def options(name: str, **own: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """R large enough to be seen, and a rank below the length."""
    large, parts = {"std": 1.0, "rank": RANK}, functions_of(name)
    return {part: {key: large[key] for key in default_options(part) if key in large} for part in parts} | own


def make(name: str, *, dtype=torch.float64, **keywords: Any) -> SynthesizerAttention:
    keywords = {"max_length": MAXIMUM, "head_dim": HEAD, "synthesizer_options": options(name)} | keywords
    layer = SynthesizerAttention(D, GROUPS.get(name, 3), name, dtype=dtype, **keywords)
    # Biases begin at zero, which would hide a missing one.
    with torch.no_grad():
        for key, parameter in layer.named_parameters():
            if "bias" in key:
                parameter.normal_(std=0.5)
    return layer.eval()


def tokens(batch: int = B, length: int = T, dtype=torch.float64) -> Tensor:
    return torch.randn(batch, length, D, dtype=dtype)


def check(got: Tensor, want: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("shape", [(0, T, D), (B, 0, D)], ids=["no examples", "no tokens"])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_gives_nothing(name, shape):
    layer, x = make(name), torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    for mask in (None, torch.ones(shape[:2])):
        y, w = layer(x, mask, need_weights=True)
        assert y.shape == shape
        assert w.shape == (shape[0], layer.num_heads, shape[1], shape[1])
        (y.sum() + layer(x, mask).sum()).backward()
    assert not any(p.grad.any() for p in layer.parameters() if p.grad is not None)
    with torch.no_grad():
        assert layer(x, is_causal=True).shape == shape


@pytest.mark.parametrize("length", [1, 2, T, MAXIMUM])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_output_is_weights_times_values(name, is_causal, length):
    """Y = concat_h(w_h G_h(X)) W_O: weights come from x, values from `value` if it is given."""
    layer, x = make(name), tokens(length=length)
    heads = layer.num_heads
    _, own = layer(x, is_causal=is_causal, need_weights=True)
    for value in (x, tokens(length=length)):
        y, w = layer(x, value=None if value is x else value, is_causal=is_causal, need_weights=True)
        assert (y.shape, y.dtype, w.shape) == (x.shape, x.dtype, (B, heads, length, length))
        check(w, own)
        check(w.sum(-1), torch.ones(B, heads, length, dtype=w.dtype))
        sums = w @ layer.v_proj(value).unflatten(-1, (heads, HEAD)).transpose(1, 2)
        check(layer.out_proj(sums.transpose(1, 2).flatten(2)), y)
        check(layer(x, value=value, is_causal=is_causal), y)
        check(layer(x[0], value=value[0], is_causal=is_causal), y[0])
    assert (w >= 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_causal_is_the_prefix(name):
    """Row t of a causal layer is the last row of the layer on the first t + 1 tokens: it sees nothing later."""
    layer, x = make(name), tokens()
    y, w = layer(x, is_causal=True, need_weights=True)
    assert torch.equal(w, w.tril())
    for t in range(T):
        check(y[:, t], layer(x[:, : t + 1])[:, t])


def slots(kind: str, length: int, keep: int) -> Tensor:
    """A row of a mask over `length` slots with `keep` real tokens."""
    order = {"right": torch.arange(length), "left": torch.arange(length).flip(0), "holes": torch.randperm(length)}[kind]
    return torch.zeros(length, dtype=torch.long).index_fill(0, order[:keep], 1)


@pytest.mark.parametrize("grad", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kind", ["right", "mixed"])
@pytest.mark.parametrize("name", NAMES)
def test_padding_changes_nothing(name, kind, is_causal, grad):
    """A padded sequence gives what it gives alone, wherever the padding is, and zeros at the padding."""
    layer, x = make(name), tokens(batch=3)
    keeps = (T, 7, 1)
    kinds = ("right", "left", "holes") if kind == "mixed" else (kind,) * 3
    mask = torch.stack([slots(k, T, keep) for k, keep in zip(kinds, keeps, strict=True)])
    x[mask == 0] = 1e3
    with torch.set_grad_enabled(grad):
        y, w = layer(x, attention_mask=mask, is_causal=is_causal, need_weights=True)
        check(layer(x, attention_mask=mask, is_causal=is_causal), y)
        for row, real in enumerate(mask.bool()):
            alone, weights = layer(x[row, real], is_causal=is_causal, need_weights=True)
            check(y[row, real], alone)
            check(layer(x[row], mask[row], is_causal=is_causal), y[row])
            check(w[row][:, real][:, :, real], weights)
            assert torch.equal(y[row, ~real], torch.zeros_like(y[row, ~real]))
            assert torch.equal(w[row][:, :, ~real], torch.zeros_like(w[row][:, :, ~real]))


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("batch", [(), (B,)], ids=["one bias", "one for each example"])
@pytest.mark.parametrize("kind", ["right", "left", "holes"])
@pytest.mark.parametrize("name", NAMES)
def test_additive_bias_is_in_slots(name, kind, batch, is_causal):
    """A padded example gives what it gives alone."""
    layer, x = make(name), tokens()
    bias = torch.randn(*batch, layer.num_heads, T, T, dtype=x.dtype)
    mask = torch.stack([slots(kind, T, 7), slots("right", T, T)])
    y, w = layer(x, attention_mask=mask, attn_bias=bias, is_causal=is_causal, need_weights=True)
    for row, real in enumerate(mask.bool()):
        own = (bias[row] if batch else bias)[:, real][:, :, real]
        alone, weights = layer(x[row, real], attn_bias=own, is_causal=is_causal, need_weights=True)
        check(y[row, real], alone)
        check(w[row][:, real][:, :, real], weights)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_fully_masked_example_is_zeros(name, is_causal):
    layer, x = make(name).train(), tokens().requires_grad_()
    mask = torch.ones(B, T)
    mask[0] = 0
    y, w = layer(x, attention_mask=mask, is_causal=is_causal, need_weights=True)
    assert torch.equal(y[0], torch.zeros_like(y[0]))
    assert torch.equal(w[0], torch.zeros_like(w[0]))
    layer(x, attention_mask=mask, is_causal=is_causal).sum().backward()
    assert x.grad.isfinite().all()
    assert torch.equal(x.grad[0], torch.zeros_like(x.grad[0]))
    assert all(p.grad.isfinite().all() for p in layer.parameters() if p.grad is not None)


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_depend_on_a_token(name):
    """None of a random function, its own of a dense one, all of vanilla."""
    layer, x, t = make(name), tokens(), 4
    changed = x.clone()
    changed[:, t] = torch.randn_like(changed[:, t])
    (_, w), (_, other) = (layer(given, need_weights=True) for given in (x, changed))
    expected = torch.full((B, T), "vanilla" in name)
    expected[:, t] = name not in INPUT_FREE
    assert torch.equal((other - w).abs().amax(dim=(1, 3)) > 1e-9, expected)


def test_factorized_random_has_the_rank_it_was_given():
    """log w is R up to a constant a row, so with every row centred its rank is that of R₁R₂ᵀ centred."""
    for rank in (1, 3, 5):
        settings = options("factorized_random", factorized_random={"rank": rank, "std": 1.0})
        _, w = make("factorized_random", synthesizer_options=settings)(tokens(), need_weights=True)
        logits = w.log()
        assert (torch.linalg.matrix_rank(logits - logits.mean(-1, keepdim=True), rtol=1e-8) == rank).all()


@pytest.mark.parametrize("name", NAMES)
def test_every_trained_parameter_gets_a_gradient(name):
    layer = make(name).train()
    y = layer(tokens(batch=5, length=MAXIMUM))
    (y * torch.randn_like(y)).sum().backward()
    for key, parameter in layer.named_parameters():
        # The bias of the keys adds a constant to each row of logits.
        if parameter.requires_grad and not key.endswith("k_proj.bias"):
            assert parameter.grad is not None, key
            assert parameter.grad.isfinite().all(), key
            assert parameter.grad.abs().max() > 1e-8, key


@pytest.mark.parametrize("name", [name for name in NAMES if "fixed_random" in name])
def test_fixed_random_is_saved_and_never_trained(name):
    layer, other, x = make(name).train(), make(name), tokens()
    ((key, table),) = layer.named_buffers()
    before = table.clone()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(x).square().sum().backward()
    optimizer.step()
    assert torch.equal(layer.state_dict()[key], before)
    assert not torch.equal(other.state_dict()[key], before)
    other.load_state_dict(layer.state_dict())
    check(other(x), layer.eval()(x))


class ListCache:
    """The least that a Hugging Face cache is: it appends along the length."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any) -> tuple[Tensor, Tensor]:
        assert layer_idx == 1
        self.keys = keys if self.keys is None else torch.cat([self.keys, keys], dim=-2)
        self.values = values if self.values is None else torch.cat([self.values, values], dim=-2)
        return self.keys, self.values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0 if self.values is None else self.values.shape[-2]


@pytest.mark.parametrize("steps", [[T], [1] * T, [3, 1, 1, 5, 1]], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_cached_is_uncached(name, steps):
    layer, x, cache = make(name, layer_idx=1), tokens(), ListCache()
    whole, start = layer(x, is_causal=True), 0
    for step in steps:
        check(layer(x[:, start : start + step], is_causal=True, cache=cache), whole[:, start : start + step])
        start += step
    assert layer.caches_keys == ("vanilla" in name)
    assert cache.values.shape == (B, layer.num_heads, T, HEAD)
    # Heads without dot products keep no keys.
    groups = {"random:3/vanilla:1": 1, "dense/factorized_random/vanilla": 1, "random+vanilla:2/dense:2": 2}
    assert cache.keys.shape == (B, groups.get(name, layer.num_heads if layer.caches_keys else 0), T, HEAD)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("kind", ["left", "right", "holes"])
@pytest.mark.parametrize("name", NAMES)
def test_cached_is_uncached_with_padding(name, kind, biased):
    """A padded prompt, then tokens in steps, as `generate()` does: positions stay logical."""
    layer, x, cache = make(name, layer_idx=1), tokens(), ListCache()
    mask = torch.ones(B, T, dtype=torch.long)
    mask[0, :5] = slots(kind, 5, 2)
    bias = torch.randn(1, layer.num_heads, T, T, dtype=x.dtype) if biased else None
    whole, weights = layer(x, mask, bias, is_causal=True, need_weights=True)
    for start, stop in ((0, 5), (5, 6), (6, 7), (7, 10), (10, 11)):
        own = None if bias is None else bias[:, :, start:stop, :stop]
        y, w = layer(x[:, start:stop], mask[:, :stop], own, is_causal=True, need_weights=True, cache=cache)
        check(y, whole[:, start:stop])
        check(w, weights[:, :, start:stop, :stop])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", [*FUNCTIONS, *MIXTURES])
def test_parameter_counts(name, bias):
    """A mixture has those of its parts, and one weight a part and head."""
    sizes = d, heads, length = 15, 3, 13
    layer, parts = (
        SynthesizerAttention(d, heads, name, length, bias=bias),
        [FUNCTIONS[part] for part in name.split("+")],
    )
    want = sum(part.weights(*sizes) + (part.biases(*sizes) if bias else 0) for part in parts)
    want += len(parts) * heads if "+" in name else 0
    assert layer.weight_parameters == want
    assert sum(p.numel() for p in layer.parameters() if p.requires_grad) == want + 2 * d * d + (2 * d if bias else 0)


@pytest.mark.parametrize("name", BOUNDED)
def test_past_the_maximum_is_refused(name):
    layer = make(name)
    assert layer.max_length == MAXIMUM
    layer(tokens(length=MAXIMUM))
    mask = torch.ones(B, MAXIMUM + 1)
    mask[:, :5] = 0
    for attention_mask in (None, mask):
        with pytest.raises(ValueError, match=rf"{MAXIMUM + 1}.*{MAXIMUM}"):
            layer(tokens(length=MAXIMUM + 1), attention_mask)
    with pytest.raises(ValueError, match="max_length"):
        make(name, max_length=None)
    cache = ListCache()
    layer = make(name, layer_idx=1)
    layer(tokens(length=MAXIMUM), is_causal=True, cache=cache)
    with pytest.raises(ValueError, match=rf"{MAXIMUM + 1}.*{MAXIMUM}"):
        layer(tokens(length=1), is_causal=True, cache=cache)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in BOUNDED])
def test_without_a_maximum(name):
    """Longer than any length that the layer was told."""
    layer = make(name)
    assert layer.max_length is None
    assert layer(tokens(length=307)).isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_extend(name):
    """Longer, then shorter: what both have is kept, the rest is as in a new layer."""
    layer, x = make(name), tokens(length=MAXIMUM)
    short, whole, values = layer(x[:, :5]), layer(x), layer.v_proj.weight
    layer.extend(MAXIMUM + 6)
    check(layer(x), whole)
    layer.train()(tokens(length=MAXIMUM + 6)).sum().backward()
    layer.extend(5)
    check(layer.eval()(x[:, :5]), short)
    assert layer.v_proj.weight is values
    if "factorized_dense" not in name:
        fresh = make(name, max_length=5)
        described = [[(p.shape, p.requires_grad) for p in each.parameters()] for each in (layer, fresh)]
        assert described[0] == described[1]
    with pytest.raises(ValueError, match="max_length=0"):
        layer.extend(0)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_gradcheck(name, padded):
    """Every parameter, the input and the values, in float64."""
    layer = make(name, max_length=5, head_dim=2)
    x, value = tokens(length=3).requires_grad_(), tokens(length=3).requires_grad_()
    mask = torch.tensor([[0, 1, 1], [1, 1, 1]]) if padded else None
    keys = [key for key, p in layer.named_parameters() if p.requires_grad]
    parameters = [layer.get_parameter(key) for key in keys]

    def f(x, value, *parameters):
        keywords = {"attention_mask": mask, "is_causal": padded, "value": value}
        return torch.func.functional_call(layer, dict(zip(keys, parameters, strict=True)), (x,), keywords)

    assert torch.autograd.gradcheck(f, (x, value, *parameters), fast_mode=True)


@pytest.mark.parametrize("name", NAMES)
def test_float32_agrees_with_float64(name):
    layer, x = make(name), tokens()
    mask = torch.stack([slots("left", T, 7), slots("right", T, T)])
    want = layer(x, attention_mask=mask, is_causal=True)
    got = layer.float()(x.float(), attention_mask=mask, is_causal=True)
    torch.testing.assert_close(got, want.float(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_dropout_only_while_training(name):
    layer, x = make(name, dropout=0.5), tokens(batch=1).expand(B, T, D)
    check(layer(x), layer(x))
    y = layer.train()(x)
    assert (y - layer(x)).abs().max() > 1e-3
    # The mask is shared where the weights are.
    assert torch.allclose(y[0], y[1]) == (name in INPUT_FREE)


def test_names_in_the_suite_are_all_there_are():
    assert set(known(layers=False)) == set(FUNCTIONS)
