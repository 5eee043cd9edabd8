"""The pictures of docs/why.md, from runs that `synthesizer inspect` has measured.

python benchmarks/why.py --translation RUN … --language-modeling RUN … --output docs/images
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from synthesizer_lab.inspect.collect import attention_maps, text_inputs, with_output
from synthesizer_lab.training.device import choose_device
from synthesizer_lab.training.run_folder import RunFolder

SENTENCE = "A man in a red shirt is riding a bicycle down the street."
STACK_COLORS = {"encoder": "tab:blue", "decoder": "tab:orange"}
FUNCTION_COLORS = {"random": "tab:green", "dense": "tab:purple", "vanilla": "tab:gray"}


# What `inspect` measured of a run: the content of inspect.json.
Run = dict[str, Any]


def heads_of(run: Run, part: str) -> list[tuple[str, int, int, dict[str, float]]]:
    """(stack, layer, head, numbers) of self-attention in "attention" or "explained"."""
    layers = [entry for entry in run[part] if entry["stack"] in STACK_COLORS]
    return [(e["stack"], e["layer"], h, head) for e in layers for h, head in enumerate(e["heads"], start=1)]


def make_panels(runs: Sequence[Run], width: float = 2.4, height: float = 2.6) -> tuple[Figure, list[Any]]:
    """A figure with a panel for each run, side by side."""
    figure = Figure(figsize=(width * len(runs) + 0.6, height), dpi=150, layout="constrained")
    axes = figure.subplots(1, len(runs), sharey=True, squeeze=False)[0]
    for axis, run in zip(axes, runs, strict=True):
        axis.set_title(f"{run['task']}\n{run['synthesizer']}", fontsize=9)
        axis.tick_params(labelsize=8, length=2)
    return figure, list(axes)


def draw_heads(
    runs: Sequence[Run], part: str, place: Callable[[dict[str, float]], tuple[float, float]], **axes_options: Any
) -> Figure:
    """A dot for each head of self-attention, at the `place` of its numbers in "attention" or "explained"."""
    figure, axes = make_panels(runs)
    for axis, run in zip(axes, runs, strict=True):
        for stack, color in STACK_COLORS.items():
            places = np.array([place(head) for side, _, _, head in heads_of(run, part) if side == stack]).reshape(-1, 2)
            axis.scatter(*places.T, s=16, color=color, alpha=0.7, label=stack)
        axis.set(**axes_options)
        axis.label_outer()
    axes[0].legend(fontsize=7, frameon=False)
    return figure


def draw_shares(runs: Sequence[Run]) -> Figure:
    """Each head by what position alone and what the own token alone explains."""

    def place(head: dict[str, float]) -> tuple[float, float]:
        return 100 * max(head["explained_by_random"], -0.05), 100 * max(head["explained_by_dense"], -0.05)

    options: dict[str, Any] = {"xlabel": "% by position", "ylabel": "% by the own token"}
    return draw_heads(runs, "explained", place, xlim=(-8, 105), ylim=(-8, 105), **options)


def draw_kinds(run: Run) -> Figure:
    """The attention of three heads on one sentence: the most positional, the most by token, the least of both."""
    folder = RunFolder(run["path"])
    model, tokenizer = folder.load(folder.read_task(folder.read_info()), choose_device("cpu"))
    (inputs,) = text_inputs(model, tokenizer, [SENTENCE])
    _, maps = attention_maps(model, tokenizer, with_output(model, inputs))
    heads = [entry for entry in heads_of(run, "explained") if entry[0] == "encoder"]
    chosen = {
        "mostly position": max(heads, key=lambda entry: entry[3]["explained_by_random"]),
        "most by the token": max(
            heads, key=lambda entry: entry[3]["explained_by_dense"] - entry[3]["explained_by_random"]
        ),
        "mostly content": min(heads, key=lambda entry: max(entry[3].values())),
    }
    figure, shown = Figure(figsize=(9.6, 3.6), dpi=150, layout="constrained"), maps["encoder"]
    for axis, (name, (_, layer, head, found)) in zip(figure.subplots(1, 3), chosen.items(), strict=True):
        axis.imshow(np.sqrt(shown.weights[layer - 1][head - 1]), cmap=colormaps["magma_r"], aspect="auto")
        position, token = (100 * found[f"explained_by_{kind}"] for kind in ("random", "dense"))
        title = f"{name}: layer {layer}, head {head}\n{position:.0f} % by position, {token:.0f} % by token"
        axis.set_title(title, fontsize=9)
        labels = shown.rows[1]
        axis.set_xticks(range(len(labels)), labels, rotation=90, fontsize=7)
        axis.set_yticks(range(len(labels)), labels, fontsize=7)
    return figure


def draw_alpha(runs: Sequence[Run]) -> Figure:
    """α over training: a line per layer, the mean over heads, and the range of the heads."""
    figure, axes = make_panels(runs, width=3.2)
    for axis, run in zip(axes, runs, strict=True):
        for gate in run["gates"]:
            steps = [entry["step"] for entry in gate["history"]]
            function = next(iter(gate["alpha"]))
            heads = np.array([entry["alpha"][function] for entry in gate["history"]])
            color, label = STACK_COLORS[gate["stack"]], gate["stack"] if gate["layer"] == 1 else None
            axis.plot(steps, heads.mean(1), color=color, linewidth=0.6 + 0.5 * gate["layer"], label=label)
            axis.fill_between(steps, heads.min(1), heads.max(1), color=color, alpha=0.08, linewidth=0)
        axis.set_xlabel("step (thicker: later layers)", fontsize=8)
    axes[0].set_ylabel("α of the first function", fontsize=8)
    axes[0].legend(fontsize=7, frameon=False)
    return figure


def draw_spread(runs: Sequence[Run]) -> Figure:
    """Each head by the entropy of its attention and its mean distance, relative to uniform attention."""

    def place(head: dict[str, float]) -> tuple[float, float]:
        return head["relative_entropy"], head["distance"] / head["uniform_distance"]

    names = {"xlabel": "entropy, 1: uniform", "ylabel": "distance ÷ that of uniform"}
    figure = draw_heads(runs, "attention", place, xlim=(0, 1.05), **names)
    for axis in figure.axes:
        axis.axhline(1.0, color="black", linewidth=0.6, linestyle=":")
    return figure


def draw_cost(runs: Sequence[Run]) -> Figure:
    """What the loss rises by if a function is left out of all layers of a stack, or of one layer."""
    figure, axes = make_panels(runs)
    for axis, run in zip(axes, runs, strict=True):
        entries = run["removed"]
        places = list(dict.fromkeys((entry["stack"], entry["layer"]) for entry in entries))
        functions = list(dict.fromkeys(entry["function"] for entry in entries))
        width = 0.8 / len(functions)
        for index, function in enumerate(functions):
            mine = [entry for entry in entries if entry["function"] == function]
            at = [places.index((entry["stack"], entry["layer"])) + width * index for entry in mine]
            increases = [entry["loss_increase"] for entry in mine]
            axis.bar(at, increases, width, color=FUNCTION_COLORS.get(function, "tab:brown"), label=function)
        names = (f"{stack[:3]} {layer or 'all'}" for stack, layer in places)
        axis.set_xticks(range(len(places)), names, rotation=90, fontsize=7)
        axis.set_yscale("symlog", linthresh=0.01)
        axis.legend(fontsize=7, frameon=False)
    axes[0].set_ylabel("increase of the loss, nats", fontsize=8)
    return figure


def main() -> None:
    """Draw the five pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--translation", nargs="+", type=Path, required=True)
    parser.add_argument("--language-modeling", nargs="+", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=Path("docs/images"))
    options = parser.parse_args()
    paths = [*options.translation, *options.language_modeling]
    runs = [{**json.loads((path / "inspect/inspect.json").read_text("utf-8")), "path": path} for path in paths]
    pictures = {
        "shares": draw_shares(runs),
        "kinds": draw_kinds(next(run for run in runs if run["synthesizer"] == "vanilla")),
        "alpha": draw_alpha([run for run in runs if run["gates"]]),
        "spread": draw_spread(runs),
        "cost": draw_cost(runs),
    }
    for name, figure in pictures.items():
        figure.savefig(options.output / f"why_{name}.png")


if __name__ == "__main__":
    main()
