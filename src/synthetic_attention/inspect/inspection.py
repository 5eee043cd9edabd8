"""Inspect a trained run: pictures of its attention, R before and after training, and statistics as JSON."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ..baselines import Baseline
from ..errors import UserError
from ..tasks.base import Task
from ..training.device import choose_device
from ..training.failures import shortage_reported
from ..training.pretrained import PretrainedRun
from ..training.run_folder import RunFolder, data_path
from . import collect, plots
from .page import Page
from .statistics import BANDS, EDGES, Array, WeightStatistics, band_mass

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

__all__ = ["Selection", "inspect_run"]

Numbers = list[dict[str, Any]]
Statistics = Mapping[str, Sequence[WeightStatistics]]
Report = Callable[[str], object]
_NUMBERS = "inspect.json"
# A heat map of about this many tokens shows a pattern and has room for labels.
_READABLE = 16
_NOTE = (
    "Layers and heads count from 1, positions from 0. A row is a query, a column a key. In one picture the same color "
    "is the same weight; the darkest color stands for 0.1, 0.25, 0.5 or 1 and more, as the scale shows."
)
_WEIGHTS_NOTE = (
    "Relative entropy is 1 where attention is uniform. Small weights: the share of keys with less than a tenth of a "
    "uniform weight. Distance: the mean distance in tokens from query to key, and the same for uniform attention. "
    "Masked keys and rows with a single visible key are left out."
)
_R_NOTE = "R without the mixture's weight α. Within ±1: the share of softmax(R) on the diagonal and next to it."
_BIASES_NOTE = "One number per head and distance, added to the logits in all layers of a stack."


@dataclass(frozen=True)
class Selection:
    """The texts to inspect a run on; without any, examples of its data: `examples` to draw, `sample` for statistics."""

    texts: Sequence[str] = ()
    data: Path | None = None
    split: str = "valid"
    examples: int = 2
    sample: int = 200


@dataclass(frozen=True, eq=False)
class _Inspected:
    """A trained run, the inputs to draw and to compute statistics over, and the model before training, if known."""

    about: dict[str, Any]
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    shown: Sequence[collect.Inputs]
    sample: Sequence[collect.Inputs]
    before: PreTrainedModel | None


def inspect_run(
    run: Path,
    selection: Selection | None = None,
    *,
    output: Path | None = None,
    device: str | None = None,
    report: Report = print,
) -> Path:
    """Draw the attention of a run's best model; write an HTML page, whose path is returned, and the numbers.

    Args:
        run: the folder of the run.
        output: the folder to write, by default inspect/ in the run. The files of an earlier call are replaced.
        device: as for `choose_device`.
        report: called with each line for the user.

    Raises:
        UserError: the run, the data, a text or the folder cannot be used.
    """
    target = run / "inspect" if output is None else output
    inspected = _read_run(run, selection or Selection(), device, report)
    earlier = _earlier_files(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    advice = "give shorter texts, a smaller --sample, or a device with more memory"
    with (
        tempfile.TemporaryDirectory(dir=target.parent, prefix=".partial-") as stage,
        shortage_reported(advice, lambda: "nothing was written"),
    ):
        page = Page(Path(stage), "{run}: {task}, {synthesizer}".format(**inspected.about))
        numbers = _write_sections(page, inspected, report)
        files = [*page.files, page.write().name, _NUMBERS]
        text = json.dumps({**inspected.about, **numbers, "files": files}, indent=2, allow_nan=False)
        (page.folder / _NUMBERS).write_text(f"{text}\n", encoding="utf-8")
        target.mkdir(exist_ok=True)
        for file in files:
            (page.folder / file).replace(target / file)
        for file in set(earlier) - set(files):
            (target / file).unlink(missing_ok=True)
    for line in sorted(page.warnings):
        report(f"{line} Characters that no font has are drawn as boxes; install one, such as Noto Sans CJK")
    return target / files[-2]


def _earlier_files(folder: Path) -> list[str]:
    """The files that an earlier call wrote into `folder`.

    Raises:
        UserError: `folder` has other content.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return []
    try:
        content: Mapping[str, Any] = json.loads((folder / _NUMBERS).read_text(encoding="utf-8"))
        # Names only: no path out of the folder.
        return [Path(name).name for name in content["files"]]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{folder}: not a folder that `synthesizer inspect` wrote; choose another --output") from None


def _read_run(path: Path, selection: Selection, device: str | None, report: Report) -> _Inspected:
    run = RunFolder(path)
    info = run.read_info()
    task = run.read_task(info)
    model, tokenizer = run.load(task, choose_device(device))
    for layer in collect.attention_layers(model):
        if isinstance(layer.module, Baseline) and not layer.module.has_shares:
            raise UserError(f"{path}: got {layer.module.name!r}; expected layers whose attention weights are per token")
    about = {"run": str(path), "task": task.name, "synthesizer": info["settings"]["synthesizer"], "sample": "the texts"}
    shown = sample = [collect.with_output(model, i) for i in collect.text_inputs(model, tokenizer, selection.texts)]
    if not shown:
        about["sample"] = f"{selection.split} data"
        split = task.read(data_path(info, selection.data), selection.split)
        examples = task.encode(split, tokenizer, model.config.max_position_embeddings, "drop")
        indices = np.linspace(0, len(examples) - 1, min(selection.sample, len(examples))).astype(int)
        sample = [inputs for index in indices for inputs in collect.example_inputs(task, model, examples[int(index)])]
        nearest = np.argsort(np.abs(examples.lengths().max(axis=1) - _READABLE), kind="stable")[: selection.examples]
        first = [collect.example_inputs(task, model, examples[int(index)])[0] for index in sorted(nearest)]
        shown = [collect.with_output(model, inputs) for inputs in first]
    return _Inspected(about, model, tokenizer, shown, sample, _initial_model(info, task, model, report))


def _initial_model(
    info: Mapping[str, Any], task: Task[Any, Any], model: PreTrainedModel, report: Report
) -> PreTrainedModel | None:
    """The model that the run started from; None if that is not known for sure."""
    before, source = collect.initial_model(model, info["settings"]["training"]["seed"]), info.get("from")
    try:
        if source is not None and not source["scratch"]:
            PretrainedRun.reopen(source, type(task)).load_into(before)
        if not collect.shares_start(before, model):
            raise UserError("these weights cannot be drawn again with the run's seed")
    except UserError as error:
        report(f"the weights before training are not shown: {error}")
        return None
    # transformers' wrapper hides the type of `to`.
    return cast(Any, before).to(model.device)


def _write_sections(page: Page, inspected: _Inspected, report: Report) -> dict[str, Any]:
    """All sections of the page; returns the numbers."""
    model, before = inspected.model, inspected.before
    page.add_section("How to read this", _NOTE)
    for number, inputs in enumerate(inspected.shown, start=1):
        report(f"drawing text {number} of {len(inspected.shown)}")
        text, maps = collect.attention_maps(model, inspected.tokenizer, inputs)
        page.add_section(f"Text {number}", text)
        for stack, of_stack in maps.items():
            page.add_picture(plots.draw_attention(of_stack), f"text{number}-{stack}", of_stack.title)
    measured = collect.measure_attention(model, inspected.sample)
    start = None if before is None else collect.measure_attention(before, inspected.sample)
    return {
        "examples": len(inspected.sample),
        "histogram_edges": EDGES.tolist(),
        "attention": _write_weights(page, inspected, measured, start),
        "random": _write_scores(page, inspected, measured),
        "gates": _write_gates(page, model),
        "relative_biases": _write_biases(page, before, model),
    }


def _write_weights(page: Page, inspected: _Inspected, measured: Statistics, start: Statistics | None) -> Numbers:
    """Histograms of the attention weights, and statistics per head; `start` is the same before training, if known."""
    layers = collect.attention_layers(inspected.model)
    names = {(layer.stack, layer.number): layer.module.synthesizer for layer in layers}
    columns = ("relative_entropy", "small_weights", "largest_weight", "distance", "uniform_distance")
    numbers, rows = [], []
    for stack, of_layers in measured.items():
        for number, statistics in enumerate(of_layers, start=1):
            name, heads = names.get((stack, number), "vanilla"), statistics.per_head()
            entry = {"stack": stack, "layer": number, "synthesizer": name, "heads": heads}
            entry["histogram"] = statistics.histogram.tolist()
            if start is not None:
                entry["histogram_before"] = start[stack][number - 1].histogram.tolist()
            numbers.append(entry)
            # Cross-attention has no distances.
            means = (f"{np.mean([h[c] for h in heads]):.2f}" if heads and c in heads[0] else "" for c in columns)
            rows.append([f"{stack}, layer {number} ({name})", *means])
    page.add_section("Attention weights", f"Over {len(inspected.sample)} examples. {_WEIGHTS_NOTE}")
    headings = ("mean over heads", "relative entropy", "small weights", "largest weight", "distance", "if uniform")
    page.add_table(headings, rows)
    page.add_picture(plots.draw_histograms(numbers), "weights", "Histograms of the attention weights of each layer")
    return numbers


def _write_scores(page: Page, inspected: _Inspected, measured: Statistics) -> Numbers:
    """R of each layer before and after training, and its mass near the diagonal."""
    layers, before = collect.attention_layers(inspected.model), inspected.before
    starts = [None] * len(layers) if before is None else collect.attention_layers(before)
    numbers, rows, figures = [], [], {}
    for layer, start in zip(layers, starts, strict=True):
        length = measured[layer.stack][0].typical_length
        length = min(length, layer.module.max_length or length)
        for name, after in layer.scores(length).items():
            states = {"after": after} if start is None else {"before": start.scores(length)[name], "after": after}
            title = f"R of {name}, {layer.stack}, layer {layer.number}: the first {length} positions"
            file = f"R-{layer.stack}-layer{layer.number}-{name}".replace("_", "-").replace(" ", "-")
            figures[file] = (plots.draw_scores(title, states, layer.is_causal), title)
            described = {state: _describe_scores(scores, layer.is_causal) for state, scores in states.items()}
            even = _describe_scores(np.zeros((1, length, length)), layer.is_causal)["band_mass"]
            uniform = {band: mass for band, (mass,) in even.items()}
            entry = {"stack": layer.stack, "layer": layer.number, "function": name, "positions": length}
            numbers.append({**entry, "uniform_band_mass": uniform, **described})
            values = [
                f"{np.mean(read(described[state])):.3g}" if state in described else "–"
                for read in (lambda of: of["std"], lambda of: of["band_mass"]["1"])
                for state in ("before", "after")
            ]
            rows.append([f"{layer.stack}, layer {layer.number} ({name})", *values, f"{uniform['1']:.3g}"])
    if numbers:
        page.add_section("R before and after training", _R_NOTE)
        headings = ("mean over heads", "deviation before", "after", "within ±1 before", "after", "if uniform")
        page.add_table(headings, rows)
        for file, (figure, title) in figures.items():
            page.add_picture(figure, file, title)
    return numbers


def _describe_scores(scores: Array, is_causal: bool) -> dict[str, Any]:
    """The numbers of one R (H, N, N), for each head."""
    mass = band_mass(scores, is_causal)
    bands = {str(band): mass[:, index].tolist() for index, band in enumerate(BANDS)}
    return {"std": scores.std(axis=(1, 2)).tolist(), "band_mass": bands}


def _write_gates(page: Page, model: PreTrainedModel) -> Numbers:
    """The weights α of the mixtures."""
    numbers, rows = [], []
    for layer in collect.attention_layers(model):
        if alphas := {name: alpha.tolist() for name, alpha in layer.alphas().items()}:
            numbers.append({"stack": layer.stack, "layer": layer.number, "alpha": alphas})
            rows += [[f"{layer.stack}, layer {layer.number}", n, *(f"{a:.2f}" for a in of)] for n, of in alphas.items()]
    if numbers:
        heads = max(len(row) for row in rows) - 2
        page.add_section("Mixture weights", "The weight α of each function on the logits, for each head.")
        page.add_table(("layer", "function", *(f"head {head + 1}" for head in range(heads))), rows)
    return numbers


def _write_biases(page: Page, before: PreTrainedModel | None, model: PreTrainedModel) -> Numbers:
    """The relative position biases."""
    start = {} if before is None else collect.relative_biases(before)
    numbers = []
    for stack, (distances, after) in collect.relative_biases(model).items():
        entry = {"stack": stack, "distances": distances.tolist(), "after": after.tolist()}
        numbers.append({**entry, "before": start[stack][1].tolist()} if stack in start else entry)
    if numbers:
        page.add_section("Relative position biases", _BIASES_NOTE)
        figure = plots.draw_biases(numbers)
        page.add_picture(figure, "biases", "What each head adds to its logits at each distance")
    return numbers
