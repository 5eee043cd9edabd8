"""Inspect a trained run: pictures of its attention and R, and statistics as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel, set_seed

from synthetic_attention.baselines import Linformer

from ..attention.layers import AttentionLayer, attention_layers
from ..errors import UserError
from ..staging import staged
from ..training.device import choose_device, shortage_reported
from ..training.run_folder import RunFolder, data_path
from . import collect, plots
from .explain import explain
from .page import Page
from .statistics import EDGES, WeightStatistics, describe_scores

Numbers = list[dict[str, Any]]
Statistics = Mapping[tuple[str, int], WeightStatistics]
_NUMBERS = "inspect.json"
# Examples of a batch.
_BATCH = 16
# A heat map of about this many tokens shows a pattern and has room for labels.
_READABLE = 16
_NOTE = (
    "Layers and heads count from 1, positions from 0. A row is a query, a column a key. The same color is the same "
    "weight in all pictures. Cells of tables have a number for each head; docs/inspecting.md explains them."
)


def inspect_run(
    run: str | Path,
    texts: Sequence[str] = (),
    *,
    data: Path | None = None,
    split: str = "valid",
    examples: int = 2,
    sample: int = 200,
    output: Path | None = None,
    device: str | None = None,
    report: Callable[[str], object] = print,
) -> Path:
    """Draw the attention of a run's best model; write an HTML page, whose path is returned, and the numbers.

    Args:
        run: the folder, or OWNER/NAME of a run on the hub.
        texts: to inspect it on; without any, `examples` of its data, or of `data`, are drawn, and statistics are over
            `sample` of them.
        output: the folder to write, by default inspect/ in the run, for a run of the hub in ./OWNER--NAME. Files of an
            earlier call are overwritten.
        device: as for `choose_device`.
        report: called with each line for the user.

    Raises:
        UserError: the run, the data, a text or the folder cannot be used.
    """
    folder = RunFolder.find(run)
    target = output or folder.results / "inspect"
    info = folder.read_info()
    task = folder.read_task(info)
    model, tokenizer = folder.load(task, choose_device(device))
    layers, batches = attention_layers(model), list[collect.Inputs]()
    if any(isinstance(layer.module, Linformer) for layer in layers):
        raise UserError(f"{run}: got 'linformer'; expected layers whose attention weights are per token")
    if texts:
        shown = drawn = [collect.with_output(model, each) for each in collect.text_inputs(model, tokenizer, texts)]
    else:
        encoded = task.encode(
            task.read(data_path(info, data), split), tokenizer, model.config.max_position_embeddings, "drop"
        )

        def inputs_of(rows: Sequence[int]) -> collect.Inputs:
            return task.collate([encoded[row] for row in rows], model.config.pad_token_id)

        nearest = np.argsort(np.abs(encoded.lengths().max(axis=1) - _READABLE), kind="stable")[:examples]
        shown = [collect.with_output(model, inputs_of([row])) for row in sorted(nearest.tolist())]
        rows = np.linspace(0, len(encoded) - 1, min(sample, len(encoded))).astype(int).tolist()
        drawn = [inputs_of([row]) for row in rows]
        # Two batches at least: one to fit on, one to measure.
        size = min(_BATCH, -(-len(rows) // 2))
        batches = [inputs_of(rows[start : start + size]) for start in range(0, len(rows), size)]
    if target.exists() and not (target / _NUMBERS).is_file() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target}: not a folder that `synthesizer inspect` wrote; choose another --output")
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
        measured = collect.measure_attention(model, drawn)
        numbers: dict[str, Any] = {
            **{"run": str(run), "task": task.name, "synthesizer": synthesizer, "examples": len(drawn)},
            "sample": "the texts" if texts else f"{split} data",
            "histogram_edges": EDGES.tolist(),
            "attention": _write_weights(page, layers, measured),
            "random": _write_scores(page, layers, measured),
            "gates": _write_gates(page, model, folder.read_log()),
        }
        if batches:
            report("measuring what attention depends on")
            # The same hidden layers of `dense` in each call: those that are drawn after the model.
            set_seed(info["settings"]["training"]["seed"])
            type(model)(model.config)
            numbers |= explain(model, batches)
            _write_explanation(page, numbers)
        page.write()
        text = json.dumps(numbers, indent=2, allow_nan=False)
        (stage / _NUMBERS).write_text(f"{text}\n", encoding="utf-8")
        target.mkdir(exist_ok=True)
        for path in stage.iterdir():
            path.replace(target / path.name)
    return target / "index.html"


def _write_weights(page: Page, layers: Sequence[AttentionLayer], measured: Statistics) -> Numbers:
    """Histograms of the attention weights, and statistics per head."""
    names = {(layer.stack, layer.number): layer.module.synthesizer for layer in layers}
    numbers, rows = Numbers(), Numbers()
    for (stack, number), statistics in measured.items():
        place = {"stack": stack, "layer": number, "synthesizer": names.get((stack, number), "vanilla")}
        heads = statistics.per_head()
        numbers.append({**place, "heads": heads, "histogram": statistics.histogram.tolist()})
        rows.append({**place, **{key: [head[key] for head in heads] for key in (heads[0] if heads else ())}})
    page.add_section("Attention weights", "Masked keys and rows with a single visible key are left out.")
    page.add_table(rows)
    page.add_picture(plots.draw_histograms(numbers), "weights", "Histograms of the attention weights of each layer")
    return numbers


def _write_scores(page: Page, layers: Sequence[AttentionLayer], measured: Statistics) -> Numbers:
    """R of each layer, and its mass near the diagonal."""
    numbers, rows = Numbers(), Numbers()
    for layer in layers:
        # A length that few sequences exceed.
        length = max(2, int(np.quantile(measured[layer.stack, layer.number].lengths, 0.95)))
        length = min(length, layer.module.max_length or length)
        uniform = describe_scores(np.zeros((1, length, length)), layer.is_causal)["band_mass"]
        for name, (first, scores) in collect.read_scores(layer, length).items():
            if not numbers:
                page.add_section("R", "R alone: without α and other functions of a mixture.")
            title = f"R of {name}, {layer.stack}, layer {layer.number}: the first {length} positions"
            file = f"R-{layer.stack}-layer{layer.number}-{name}".replace("_", "-").replace(" ", "-")
            page.add_picture(plots.draw_scores(title, scores, layer.is_causal, first), file, title)
            place = {"stack": layer.stack, "layer": layer.number, "function": name}
            found = describe_scores(scores, layer.is_causal)
            masses = {band: mass for band, (mass,) in uniform.items()}
            numbers.append({**place, "positions": length, "after": found, "uniform_band_mass": masses})
            near = {"within ±1": found["band_mass"]["1"], "if uniform": masses["1"]}
            rows.append({**place, "std": found["std"], **near})
    if numbers:
        page.add_table(rows)
    return numbers


def _write_gates(page: Page, model: PreTrainedModel, log: Sequence[Mapping[str, Any]]) -> Numbers:
    """α of each mixture, in the best model and at each validation in `log`."""
    numbers, names = Numbers(), {module: name for name, module in model.named_modules()}
    for layer in attention_layers(model):
        alphas = {part: part.alpha.tolist() for part in collect.parts_of(layer) if part.alpha is not None}
        history = [
            {"step": entry["step"], "alpha": {part.name: logged[names[part.group]][part.place] for part in alphas}}
            for entry in log
            if all(names[part.group] in (logged := entry.get("alpha", {})) for part in alphas)
        ]
        if alphas:
            of_name = {part.name: alpha for part, alpha in alphas.items()}
            numbers.append({"stack": layer.stack, "layer": layer.number, "alpha": of_name, "history": history})
    if numbers:
        page.add_section("Mixture weights", "The weight α of each function on the logits, for each head.")
        page.add_table([{"stack": each["stack"], "layer": each["layer"], **each["alpha"]} for each in numbers])
        if all(len(entry["history"]) > 1 for entry in numbers):
            page.add_picture(plots.draw_gates(numbers), "alpha", "α of each head at each validation during training")
    return numbers


def _write_explanation(page: Page, found: Mapping[str, Any]) -> None:
    if found["explained"]:
        text = "For each head the shares of its attention that position alone / the own token alone explain."
        page.add_section("What attention depends on", text)
        page.add_table(found["explained"])
    text = f"How much the loss, {found['loss']:.4f}, rises if a function is left out of one layer or of all."
    page.add_section("Without a function", text)
    rows = [
        {**each, "layer": each["layer"] or "all", "loss_increase": f"{each['loss_increase']:+.4f}"}
        for each in found["removed"]
    ]
    page.add_table(rows)
