"""Inspect a trained run: pictures of its attention and R, and statistics as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment
from transformers import PreTrainedModel, set_seed

from synthetic_attention.baselines import Linformer

from ..attention.layers import AttentionLayer, attention_layers
from ..errors import UserError
from ..staging import staged
from ..tasks.classification import labels_for
from ..training.device import choose_device, shortage_reported
from ..training.run_folder import RunFolder, data_path
from . import collect, plots
from .collect import EDGES, WeightStatistics, describe_scores
from .explain import explain

Numbers = list[dict[str, Any]]
Statistics = Mapping[tuple[str, int], WeightStatistics]
_NUMBERS = "inspect.json"
# Examples of a batch.
_BATCH = 16
# A heat map of about this many tokens shows a pattern and has room for labels.
_READABLE = 16


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
        found, longest = task.records(data_path(info, data), split).load(), model.config.max_position_embeddings
        encoded = task.encode(found, tokenizer, longest, "drop", **labels_for(model, found))

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
        synthesizer, drawings = info["settings"]["synthesizer"], []
        for number, inputs in enumerate(shown, start=1):
            report(f"drawing text {number} of {len(shown)}")
            text, maps = collect.attention_maps(model, tokenizer, inputs)
            for stack, of_stack in maps.items():
                plots.save(plots.draw_attention(of_stack), stage / f"text{number}-{stack}.png")
            drawings.append((text, {f"text{number}-{stack}": of_stack.title for stack, of_stack in maps.items()}))
        measured = collect.measure_attention(model, drawn)
        weights, gates = _describe_weights(layers, measured), _describe_gates(model, folder.read_log())
        plots.save(plots.draw_histograms(weights), stage / "weights.png")
        if gates_drawn := bool(gates) and all(len(entry["history"]) > 1 for entry in gates):
            plots.save(plots.draw_gates(gates), stage / "alpha.png")
        scores, score_pictures = _draw_scores(stage, layers, measured)
        numbers: dict[str, Any] = {
            **{"run": str(run), "task": task.name, "synthesizer": synthesizer, "examples": len(drawn)},
            "sample": "the texts" if texts else f"{split} data",
            "histogram_edges": EDGES.tolist(),
            **{"attention": weights, "random": scores, "gates": gates},
        }
        if batches:
            report("measuring what attention depends on")
            # The same hidden layers of `dense` in each call: those that are drawn after the model.
            set_seed(info["settings"]["training"]["seed"])
            type(model)(model.config)
            numbers |= explain(model, batches)
        pictures = {"texts": drawings, "score_pictures": score_pictures, "gates_drawn": gates_drawn}
        page = make_page(f"{run}: {task.name}, {synthesizer}", numbers, **pictures)
        (stage / "index.html").write_text(page, encoding="utf-8")
        text = json.dumps(numbers, indent=2, allow_nan=False)
        (stage / _NUMBERS).write_text(f"{text}\n", encoding="utf-8")
        target.mkdir(exist_ok=True)
        for path in stage.iterdir():
            path.replace(target / path.name)
    return target / "index.html"


def _describe_weights(layers: Sequence[AttentionLayer], measured: Statistics) -> Numbers:
    """The statistics of each layer, per head, and the histogram of its weights."""
    names = {(layer.stack, layer.number): layer.module.synthesizer for layer in layers}
    return [
        {
            **{"stack": stack, "layer": number, "synthesizer": names.get((stack, number), "vanilla")},
            **{"heads": statistics.per_head(), "histogram": statistics.histogram.tolist()},
        }
        for (stack, number), statistics in measured.items()
    ]


def _draw_scores(
    folder: Path, layers: Sequence[AttentionLayer], measured: Statistics
) -> tuple[Numbers, dict[str, str]]:
    """The numbers of R of each layer, with its mass near the diagonal; and its pictures' captions."""
    numbers, captions = Numbers(), dict[str, str]()
    for layer in layers:
        # A length that few sequences exceed.
        length = max(2, int(np.quantile(measured[layer.stack, layer.number].lengths, 0.95)))
        length = min(length, layer.module.max_length or length)
        uniform = describe_scores(np.zeros((1, length, length)), layer.is_causal)["band_mass"]
        for name, (first, scores) in collect.read_scores(layer, length).items():
            title = f"R of {name}, {layer.stack}, layer {layer.number}: the first {length} positions"
            file = f"R-{layer.stack}-layer{layer.number}-{name}".replace("_", "-").replace(" ", "-")
            plots.save(plots.draw_scores(title, scores, layer.is_causal, first), folder / f"{file}.png")
            captions[file] = title
            place = {"stack": layer.stack, "layer": layer.number, "function": name, "positions": length}
            found = describe_scores(scores, layer.is_causal)
            masses = {band: mass for band, (mass,) in uniform.items()}
            numbers.append({**place, "after": found, "uniform_band_mass": masses})
    return numbers, captions


def _describe_gates(model: PreTrainedModel, log: Sequence[Mapping[str, Any]]) -> Numbers:
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
    return numbers


def make_page(title: str, numbers: Mapping[str, Any], **pictures: Any) -> str:
    """The page of the content of inspect.json: no scripts, nothing loaded from elsewhere."""
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"cell": _cell, "headings": lambda rows: dict.fromkeys(chain(*rows))}
    template = environment.from_string(files(__package__).joinpath("page.html").read_text(encoding="utf-8"))
    places = [{name: entry[name] for name in ("stack", "layer", "synthesizer")} for entry in numbers["attention"]]
    of_heads = [pd.DataFrame(entry["heads"]).to_dict("list") for entry in numbers["attention"]]
    rows = {
        "weights": [place | heads for place, heads in zip(places, of_heads, strict=True)],
        "alphas": [{"stack": gate["stack"], "layer": gate["layer"], **gate["alpha"]} for gate in numbers["gates"]],
    }
    return template.render(title=title, **numbers, **rows, **pictures)


def _cell(value: Any) -> str:
    """The text of a number, a list, or a dictionary of these."""
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    if isinstance(value, dict):
        return " / ".join(map(_cell, value.values()))
    return f"{value:.2f}" if isinstance(value, float) else str(value)
