"""Inspect a trained run: pictures of its attention, R before and after training, and statistics as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from synthetic_attention.baselines import Linformer
from synthetic_attention.staging import staged

from ..errors import UserError, damage_reported
from ..tasks.base import Task
from ..training.device import choose_device
from ..training.failures import shortage_reported
from ..training.run_folder import PretrainedRun, RunFolder, data_path
from . import collect, plots
from .page import Page
from .statistics import EDGES, WeightStatistics, describe_scores

__all__ = ["Selection", "inspect_run"]

Numbers = list[dict[str, Any]]
Layers = Sequence[collect.AttentionLayer]
Statistics = Mapping[str, Sequence[WeightStatistics]]
Report = Callable[[str], object]
Explain = Callable[[PreTrainedModel, Sequence[collect.Inputs]], collect.Explanation]
_NUMBERS = "inspect.json"
# Examples of a batch.
_BATCH = 16
# A heat map of about this many tokens shows a pattern and has room for labels.
_READABLE = 16
_NOTE = (
    "Layers and heads count from 1, positions from 0. A row is a query, a column a key. The same color is the same "
    "weight in all pictures."
)
_WEIGHTS_NOTE = (
    "Relative entropy is 1 where attention is uniform. Small weights: the share of keys with less than a tenth of a "
    "uniform weight. Distance: the mean distance in tokens from query to key, and the same for uniform attention. "
    "Masked keys and rows with a single visible key are left out."
)
_EXPLAINED_NOTE = (
    "Of each head the share of its attention that position alone / its own token alone explain, in percent of the KL "
    "divergence from uniform attention. The rest depends on the other tokens."
)
_REMOVED_NOTE = (
    "How much the loss rises, in nats per label, if a function is left out of the logits. In a mixture the others keep "
    "their α; without a mixture the attention is uniform then."
)
_R_NOTE = (
    "R without the mixture's weight α. A relative position bias belongs to all layers of its stack. Within ±1: the "
    "share of softmax(R) on the diagonal and next to it."
)


@dataclass(frozen=True)
class Selection:
    """The texts to inspect a run on; without any, examples of its data: `examples` to draw, `sample` for statistics."""

    texts: Sequence[str] = ()
    data: Path | None = None
    split: str = "valid"
    examples: int = 2
    sample: int = 200


def inspect_run(
    run: Path,
    selection: Selection | None = None,
    *,
    output: Path | None = None,
    device: str | None = None,
    report: Report = print,
    explain: Explain | None = None,
) -> Path:
    """Draw the attention of a run's best model; write an HTML page, whose path is returned, and the numbers.

    Args:
        run: the folder of the run.
        output: the folder to write, by default inspect/ in the run. The files of an earlier call are replaced.
        device: as for `choose_device`.
        report: called with each line for the user.
        explain: measures what attention depends on, on batches of the data; not with texts.

    Raises:
        UserError: the run, the data, a text or the folder cannot be used.
    """
    folder, target, selection = RunFolder(run), output or run / "inspect", selection or Selection()
    info = folder.read_info()
    task = folder.read_task(info)
    model, tokenizer = folder.load(task, choose_device(device))
    log, layers = folder.read_log(), collect.attention_layers(model)
    if any(isinstance(layer.module, Linformer) for layer in layers):
        raise UserError(f"{run}: got 'linformer'; expected layers whose attention weights are per token")
    batches: list[collect.Inputs] = []
    if selection.texts:
        texts = collect.text_inputs(model, tokenizer, selection.texts)
        shown = sample = [collect.with_output(model, inputs) for inputs in texts]
    else:
        shown, sample, batches = _read_data(data_path(info, selection.data), selection, task, model, tokenizer)
    before = _initial_model(info, task, model, report)
    starts = [] if before is None else collect.attention_layers(before)
    earlier = _earlier_files(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    advice = "give shorter texts, a smaller --sample, or a device with more memory"
    with (
        staged(target.parent, f".partial-{target.name}-") as stage,
        shortage_reported(advice, lambda: "nothing was written"),
    ):
        synthesizer = info["settings"]["synthesizer"]
        page = Page(stage, f"{run}: {task.name}, {synthesizer}")
        page.add_section("How to read this", _NOTE)
        for number, inputs in enumerate(shown, start=1):
            report(f"drawing text {number} of {len(shown)}")
            text, maps = collect.attention_maps(model, tokenizer, inputs)
            page.add_section(f"Text {number}", text)
            for stack, of_stack in maps.items():
                page.add_picture(plots.draw_attention(of_stack), f"text{number}-{stack}", of_stack.title)
        measured = collect.measure_attention(model, sample)
        measured_before = {} if before is None else collect.measure_attention(before, sample)
        page.add_section("Attention weights", f"Over {len(sample)} examples. {_WEIGHTS_NOTE}")
        numbers = {
            **{"run": str(run), "task": task.name, "synthesizer": synthesizer, "examples": len(sample)},
            "sample": "the texts" if selection.texts else f"{selection.split} data",
            "histogram_edges": EDGES.tolist(),
            "attention": _write_weights(page, layers, measured, measured_before),
            "random": _write_scores(page, layers, starts, measured),
            "gates": _write_gates(page, layers, {module: name for name, module in model.named_modules()}, log),
        }
        if explain is not None and batches:
            report("measuring what attention depends on")
            numbers |= _write_explanation(page, layers, explain(model, batches))
        page.write()
        files = [*page.files, _NUMBERS]
        text = json.dumps({**numbers, "files": files}, indent=2, allow_nan=False)
        (page.folder / _NUMBERS).write_text(f"{text}\n", encoding="utf-8")
        target.mkdir(exist_ok=True)
        for file in files:
            (page.folder / file).replace(target / file)
        for file in set(earlier) - set(files):
            (target / file).unlink(missing_ok=True)
    return target / "index.html"


def _earlier_files(folder: Path) -> list[str]:
    """The files that an earlier call wrote into `folder`.

    Raises:
        UserError: `folder` has other content.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return []
    with suppress(UserError), damage_reported(folder):
        # Names only: no path out of the folder.
        return [Path(name).name for name in json.loads((folder / _NUMBERS).read_text(encoding="utf-8"))["files"]]
    raise UserError(f"{folder}: not a folder that `synthesizer inspect` wrote; choose another --output")


def _read_data(
    data: Any, selection: Selection, task: Task[Any, Any], model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> tuple[list[collect.Inputs], list[collect.Inputs], list[collect.Inputs]]:
    """The examples to draw, of about `_READABLE` tokens, those for the statistics, and these as padded batches."""
    split = task.read(data, selection.split)
    examples = task.encode(split, tokenizer, model.config.max_position_embeddings, "drop")
    nearest = np.argsort(np.abs(examples.lengths().max(axis=1) - _READABLE), kind="stable")[: selection.examples]
    first = [collect.example_inputs(task, model, examples[int(index)])[0] for index in sorted(nearest)]
    indices = np.linspace(0, len(examples) - 1, min(selection.sample, len(examples))).astype(int).tolist()
    sample = [inputs for index in indices for inputs in collect.example_inputs(task, model, examples[index])]
    # Two at least: one to fit on, one to measure.
    size = min(_BATCH, -(-len(indices) // 2))
    rows = [indices[start : start + size] for start in range(0, len(indices), size)]
    batches = [task.collate([examples[i] for i in each], cast(int, model.config.pad_token_id)) for each in rows]
    # Models return no attention weights for several sentences in a row.
    batches = [batch for batch in batches if "segment_ids" not in batch]
    return [collect.with_output(model, inputs) for inputs in first], sample, batches


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


def _write_weights(page: Page, layers: Layers, measured: Statistics, before: Statistics) -> Numbers:
    """Histograms of the attention weights, and statistics per head; `before` training too, if known."""
    names = {(layer.stack, layer.number): layer.module.synthesizer for layer in layers}
    columns = ("relative_entropy", "small_weights", "largest_weight", "distance", "uniform_distance")
    numbers, rows = [], []
    for stack, of_layers in measured.items():
        for number, statistics in enumerate(of_layers, start=1):
            name, heads = names.get((stack, number), "vanilla"), statistics.per_head()
            entry = {"stack": stack, "layer": number, "synthesizer": name, "heads": heads}
            entry["histogram"] = statistics.histogram.tolist()
            if before:
                entry["histogram_before"] = before[stack][number - 1].histogram.tolist()
            numbers.append(entry)
            # Cross-attention has no distances.
            means = (f"{np.mean([h[c] for h in heads]):.2f}" if heads and c in heads[0] else "" for c in columns)
            rows.append([f"{stack}, layer {number} ({name})", *means])
    headings = ("mean over heads", "relative entropy", "small weights", "largest weight", "distance", "if uniform")
    page.add_table(headings, rows)
    page.add_picture(plots.draw_histograms(numbers), "weights", "Histograms of the attention weights of each layer")
    return numbers


def _write_scores(page: Page, layers: Layers, starts: Layers, measured: Statistics) -> Numbers:
    """R of each layer before (if known) and after training, and its mass near the diagonal."""
    numbers: Numbers = []
    rows, order = [], ["before", "after"] if starts else ["after"]
    for index, layer in enumerate(layers):
        length = measured[layer.stack][0].typical_length
        length = min(length, layer.module.max_length or length)
        for name, after in layer.scores(length).items():
            if not numbers:
                page.add_section("R before and after training", _R_NOTE)
            states = {"before": starts[index].scores(length)[name]} if starts else {}
            states["after"] = after
            title = f"R of {name}, {layer.stack}, layer {layer.number}: the first {length} positions"
            file = f"R-{layer.stack}-layer{layer.number}-{name}".replace("_", "-").replace(" ", "-")
            page.add_picture(plots.draw_scores(title, states, layer.is_causal, layer.first_head(name)), file, title)
            described = {state: describe_scores(scores, layer.is_causal) for state, scores in states.items()}
            even = describe_scores(np.zeros((1, length, length)), layer.is_causal)["band_mass"]
            entry = {"stack": layer.stack, "layer": layer.number, "function": name, "positions": length, **described}
            numbers.append({**entry, "uniform_band_mass": {band: mass for band, (mass,) in even.items()}})
            values = [described[state]["std"] for state in order]
            values += [described[state]["band_mass"]["1"] for state in order] + [even["1"]]
            rows.append([f"{layer.stack}, layer {layer.number} ({name})", *(f"{np.mean(v):.3g}" for v in values)])
    if numbers:
        read = [f"{what} {state}" for what in ("deviation", "within ±1") for state in order]
        page.add_table(("mean over heads", *read, "if uniform"), rows)
    return numbers


def _write_gates(page: Page, layers: Layers, names: Mapping[Any, str], log: Sequence[Mapping[str, Any]]) -> Numbers:
    """α of each mixture, in the best model and at each validation in `log`; `names` are those of the modules."""
    numbers: Numbers = []
    rows = []
    for layer in layers:
        if alphas := {name: alpha.tolist() for name, alpha in layer.alphas().items()}:
            history: Numbers = []
            mixtures = [names[mixture] for mixture in layer.mixtures()]
            for entry in log:
                logged = entry.get("alpha")
                if isinstance(logged, dict) and all(mixture in logged for mixture in mixtures):
                    values = (heads for mixture in mixtures for heads in logged[mixture])
                    history.append({"step": entry["step"], "alpha": dict(zip(alphas, values, strict=True))})
            numbers.append({"stack": layer.stack, "layer": layer.number, "alpha": alphas, "history": history})
            for name, alpha in alphas.items():
                before = [""] * layer.first_head(name)
                rows.append([f"{layer.stack}, layer {layer.number}", name, *before, *(f"{a:.2f}" for a in alpha)])
    if numbers:
        page.add_section("Mixture weights", "The weight α of each function on the logits, for each head.")
        heads = range(1, max(len(row) for row in rows) - 1)
        page.add_table(("layer", "function", *(f"head {head}" for head in heads)), rows)
        if all(len(entry["history"]) > 1 for entry in numbers):
            page.add_picture(plots.draw_gates(numbers), "alpha", "α of each head at each validation during training")
    return numbers


def _write_explanation(page: Page, layers: Layers, found: collect.Explanation) -> dict[str, Any]:
    explained, rows = [], []
    # A model with a baseline has no numbers for its heads.
    for layer, heads in zip(layers, found.heads, strict=False):
        explained.append({"stack": layer.stack, "layer": layer.number, "heads": heads})
        cells = (" / ".join(f"{100 * share:.0f}" for share in head.values()) for head in heads)
        rows.append([f"{layer.stack}, layer {layer.number}", *cells])
    if rows:
        page.add_section("What attention depends on", _EXPLAINED_NOTE)
        page.add_table(("layer", *(f"head {head}" for head in range(1, len(rows[0])))), rows)
    if found.removed:
        page.add_section("Without a function", f"{_REMOVED_NOTE} The loss is {found.loss:.4f}.")
        rows = []
        for entry in found.removed:
            where = "all layers" if entry["layer"] is None else f"layer {entry['layer']}"
            rows.append([f"{entry['stack']}, {where}", entry["function"], f"{entry['loss_increase']:+.4f}"])
        page.add_table(("layer", "function", "increase of the loss"), rows)
    return {"explained": explained, "loss": found.loss, "removed": list(found.removed)}
