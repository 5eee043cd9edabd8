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
import pandas as pd
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


def heads_of(run: Run, part: str) -> pd.DataFrame:
    """A line per head of self-attention: stack, layer, head, and its numbers in "attention" or "explained"."""
    return pd.DataFrame(
        {"stack": entry["stack"], "layer": entry["layer"], "head": number, **numbers}
        for entry in run[part]
        if entry["stack"] in STACK_COLORS
        for number, numbers in enumerate(entry["heads"], start=1)
    )


def make_panels(runs: Sequence[Run], width: float = 2.4) -> tuple[Figure, list[Any]]:
    """A figure with a panel for each run, side by side."""
    figure = Figure(figsize=(width * len(runs) + 0.6, 2.6), dpi=150, layout="constrained")
    axes = figure.subplots(1, len(runs), sharey=True, squeeze=False)[0]
    for axis, run in zip(axes, runs, strict=True):
        axis.set_title(f"{run['task']}\n{run['synthesizer']}", fontsize=9)
        axis.tick_params(labelsize=8, length=2)
    return figure, list(axes)


def draw_heads(runs: Sequence[Run], part: str, place: Callable[[pd.DataFrame], Any], **axes_options: Any) -> Figure:
    """A dot for each head of self-attention, at the `place` (x, y) of its numbers in "attention" or "explained"."""
    figure, axes = make_panels(runs)
    for axis, run in zip(axes, runs, strict=True):
        heads = heads_of(run, part)
        for stack, color in STACK_COLORS.items():
            axis.scatter(*place(heads[heads["stack"] == stack]), s=16, color=color, alpha=0.7, label=stack)
        axis.set(**axes_options)
        axis.label_outer()
    axes[0].legend(fontsize=7, frameon=False)
    return figure


def draw_shares(runs: Sequence[Run]) -> Figure:
    """Each head by what position alone and what the own token alone explains."""
    columns = ["explained_by_random", "explained_by_dense"]
    axes = {"xlim": (-8, 105), "ylim": (-8, 105), "xlabel": "% by position", "ylabel": "% by the own token"}
    return draw_heads(runs, "explained", lambda heads: 100 * heads[columns].clip(lower=-0.05).to_numpy().T, **axes)


def draw_spread(runs: Sequence[Run]) -> Figure:
    """Each head by the entropy of its attention and its mean distance, relative to uniform attention."""

    def place(heads: pd.DataFrame) -> Any:
        return heads["relative_entropy"], heads["distance"] / heads["uniform_distance"]

    names = {"xlabel": "entropy, 1: uniform", "ylabel": "distance ÷ that of uniform"}
    figure = draw_heads(runs, "attention", place, xlim=(0, 1.05), **names)
    for axis in figure.axes:
        axis.axhline(1.0, color="black", linewidth=0.6, linestyle=":")
    return figure


def draw_kinds(run: Run) -> Figure:
    """The attention of three heads on one sentence: the most positional, the most by token, the least of both."""
    folder = RunFolder(run["path"])
    model, tokenizer = folder.load(folder.read_task(folder.read_info()), choose_device("cpu"))
    (inputs,) = text_inputs(model, tokenizer, [SENTENCE])
    _, maps = attention_maps(model, tokenizer, with_output(model, inputs))
    heads, shown = heads_of(run, "explained").query("stack == 'encoder'"), maps["encoder"]
    position, token = heads["explained_by_random"], heads["explained_by_dense"]
    chosen = {
        "mostly position": position.idxmax(),
        "most by the token": (token - position).idxmax(),
        "mostly content": position.combine(token, max).idxmin(),
    }
    figure = Figure(figsize=(9.6, 3.6), dpi=150, layout="constrained")
    for axis, (name, index) in zip(figure.subplots(1, 3), chosen.items(), strict=True):
        layer, head = heads.loc[index, ["layer", "head"]]
        axis.imshow(np.sqrt(shown.weights[layer - 1][head - 1]), cmap=colormaps["magma_r"], aspect="auto")
        shares = f"{100 * position[index]:.0f} % by position, {100 * token[index]:.0f} % by token"
        axis.set_title(f"{name}: layer {layer}, head {head}\n{shares}", fontsize=9)
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


def draw_cost(runs: Sequence[Run]) -> Figure:
    """What the loss rises by if a function is left out of all layers of a stack, or of one layer."""
    figure, axes = make_panels(runs)
    for axis, run in zip(axes, runs, strict=True):
        places = ({**entry, "place": f"{entry['stack'][:3]} {entry['layer'] or 'all'}"} for entry in run["removed"])
        bars = pd.DataFrame(places).pivot_table("loss_increase", "place", "function", sort=False)
        colors = [FUNCTION_COLORS.get(name, "tab:brown") for name in bars]
        bars.plot.bar(ax=axis, width=0.8, color=colors, fontsize=7, xlabel="")
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
