"""Draw an attention matrix of each kind: docs/images/attention_matrices.png.

Four attention layers with one head learn the same toy task: every word of a sentence attends to the noun that it
belongs to, a verb to its subject. Their input has no positions, so each shows only what its synthesizing function sees.

    python examples/attention_matrices.py
"""

import random
from pathlib import Path

import torch
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from torch import Tensor, nn

from synthetic_attention import SynthesizerAttention

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "attention_matrices.png"
TITLES = {
    "vanilla": "from pairs of tokens",
    "dense": "from each token alone",
    "random": "learned, the same for every input",
    "random+vanilla": "both",
}
DETERMINERS, ADJECTIVES = ["the", "a"], ["old", "small", "black", "clever", "hungry", "lazy"]
NOUNS, VERBS = ["cat", "dog", "fox", "bird", "horse", "mouse"], ["sees", "likes", "follows", "chases"]
WORDS = ["", *DETERMINERS, *ADJECTIVES, *NOUNS, *VERBS]
SHOWN = ["the", "old", "cat", "sees", "the", "small", "black", "dog"]
MAX_LENGTH = 11


class Pointer(nn.Module):
    """An embedding and an attention layer: word ids (B, T) to attention weights (B, T, T)."""

    def __init__(self, synthesizer: str, d_model: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(WORDS), d_model)
        self.attention = SynthesizerAttention(d_model, 1, synthesizer=synthesizer, max_length=MAX_LENGTH)

    def forward(self, ids: Tensor) -> Tensor:
        _, weights = self.attention(self.embedding(ids), attention_mask=ids > 0, need_weights=True)
        return weights[:, 0]


def make_batch(size: int) -> tuple[Tensor, Tensor]:
    """Ids of padded sentences (B, T), and for each word the position of its noun, −1 for padding."""
    ids, targets = torch.zeros(size, MAX_LENGTH, dtype=torch.long), torch.full((size, MAX_LENGTH), -1)
    for row in range(size):
        subject, phrase = (
            [random.choice(DETERMINERS), *random.sample(ADJECTIVES, random.randint(0, 3)), random.choice(NOUNS)]
            for _ in range(2)
        )
        words = [*subject, random.choice(VERBS), *phrase]
        ids[row, : len(words)] = torch.tensor([WORDS.index(word) for word in words])
        targets[row, : len(subject) + 1] = len(subject) - 1
        targets[row, len(subject) + 1 : len(words)] = len(words) - 1
    return ids, targets


def train(synthesizer: str, steps: int = 300) -> Pointer:
    random.seed(0)
    torch.manual_seed(0)
    model = Pointer(synthesizer)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        ids, targets = make_batch(64)
        log_weights = model(ids).clamp_min(1e-9).log()
        loss = nn.functional.nll_loss(log_weights.flatten(0, 1), targets.flatten(), ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def main() -> None:
    ids = torch.tensor([[WORDS.index(word) for word in SHOWN]])
    figure = Figure(figsize=(9.6, 3.1), dpi=200, layout="constrained")
    axes = figure.subplots(1, len(TITLES), sharex=True, sharey=True)
    for axis, (name, title) in zip(axes, TITLES.items(), strict=True):
        weights = train(name)(ids)[0].detach()
        mesh = axis.pcolormesh(weights, cmap="BuPu", norm=PowerNorm(0.7, 0, 1), edgecolor="white", linewidth=1)
        axis.set_title(f"{name}\n", fontsize=11, fontweight="bold")
        axis.text(0.5, 1.03, title, transform=axis.transAxes, ha="center", va="bottom", fontsize=9).set_in_layout(False)
        places = [index + 0.5 for index in range(len(SHOWN))]
        axis.set_xticks(places, SHOWN, rotation=90)
        axis.set_yticks(places, SHOWN)
        axis.tick_params(length=0)
        axis.set_aspect("equal")
    axes[0].invert_yaxis()
    figure.colorbar(mesh, ax=axes, label="attention weight", ticks=[0, 0.25, 0.5, 1], pad=0.01, shrink=0.66)
    figure.savefig(PICTURE)


if __name__ == "__main__":
    main()
