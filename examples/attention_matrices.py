"""Draw a head of each of four trained translation models: docs/images/attention_matrices.png.

    synthesizer compare translation --data MULTI30K --source en --target de --preset demo --steps 1500 --truncate \
        --synthesizers vanilla,dense,random,random+vanilla --seeds 0 --output runs/matrices
    python examples/attention_matrices.py runs/matrices

The head is the one of the encoder whose rows have the lowest mean entropy on this sentence.
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from synthesizer_lab.inspect.collect import attention_maps, text_inputs, with_output
from synthesizer_lab.training.device import choose_device
from synthesizer_lab.training.run_folder import RunFolder

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "attention_matrices.png"
TITLES = {
    "vanilla": "from pairs of tokens",
    "dense": "from each token alone",
    "random": "learned, the same for every input",
    "random+vanilla": "both",
}
SENTENCE = "A man in a red shirt is riding a bicycle."


def main() -> None:
    figure = Figure(figsize=(9.6, 3.3), dpi=200, layout="constrained")
    axes = figure.subplots(1, len(TITLES), sharex=True, sharey=True)
    for axis, (name, title) in zip(axes, TITLES.items(), strict=True):
        folder = RunFolder(Path(sys.argv[1], name, "seed-0"))
        model, tokenizer = folder.load(folder.read_task(folder.read_info()), choose_device("cpu"))
        (inputs,) = text_inputs(model, tokenizer, [SENTENCE])
        shown = attention_maps(model, tokenizer, with_output(model, inputs))[1]["encoder"]
        heads = [(layer, head, w) for layer, ws in enumerate(shown.weights, 1) for head, w in enumerate(ws, 1)]
        layer, head, weights = min(heads, key=lambda each: -np.sum(each[2] * np.log(each[2] + 1e-9)))
        mesh = axis.pcolormesh(weights, cmap="BuPu", norm=PowerNorm(0.7, 0, 1), edgecolor="white", linewidth=1)
        axis.set_title(f"{name}\n", fontsize=11, fontweight="bold")
        axis.text(0.5, 1.03, title, transform=axis.transAxes, ha="center", va="bottom", fontsize=9).set_in_layout(False)
        axis.set_xlabel(f"layer {layer}, head {head}", fontsize=8)
        words = shown.rows[1]
        places = [index + 0.5 for index in range(len(words))]
        axis.set_xticks(places, words, rotation=90, fontsize=7)
        axis.set_yticks(places, words, fontsize=7)
        axis.tick_params(length=0)
        axis.set_aspect("equal")
    axes[0].invert_yaxis()
    figure.colorbar(mesh, ax=axes, label="attention weight", ticks=[0, 0.25, 0.5, 1], pad=0.01, shrink=0.66)
    figure.savefig(PICTURE)


if __name__ == "__main__":
    main()
