"""What a conversion changed: the table, the picture and the numbers in report.json."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from rich.table import Table

from synthetic_attention.models import SynthesizerPreTrainedModel
from synthetic_attention.models.cache import cache_bytes

from ..benchmark.harness import time_turns
from ..inspect.collect import attention_layers
from .calibrate import Batch, run
from .choose import Head, HeadCosts

__all__ = ["ConversionReport", "compare_speed", "describe_layers", "draw_heads"]

# Generation is timed with up to so many rows, tokens of a causal model's prompt, and new tokens.
_ROWS, _PROMPT, _NEW = 32, 8, 32
_REPEATS = 5
_KINDS = {"random": "position alone", "dense": "own token alone"}


@dataclass
class ConversionReport:
    """The result of a conversion.

    Attributes:
        replaced: the function in the replaced heads; None if no head was measured.
        synthesizer: of the new model.
        costs: of each layer, encoder first.
        heads: those replaced.
        increases: of the loss in nats, if this head alone is replaced; empty if heads were not chosen by it.
        loss: nats per label of the text that is held out: before, calibrated, distilled.
        speed: milliseconds of generation (or of a forward), and bytes of the cache, of both models.
    """

    model: str
    synthesizer: Any
    replaced: str | None = None
    layers: Sequence[tuple[str, int]] = ()
    costs: Sequence[HeadCosts] = ()
    heads: Sequence[Head] = ()
    increases: Mapping[Head, float] = field(default_factory=dict)
    loss: dict[str, float] = field(default_factory=dict)
    speed: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The content of report.json; heads count from 1, as layers do."""
        chosen, rows = {*self.heads}, []
        for number, ((stack, layer), costs) in enumerate(zip(self.layers, self.costs, strict=True)):
            for head in range(len(costs.divergence["uniform"])):
                values: dict[str, Any] = {"stack": stack, "layer": layer, "head": head + 1}
                values["replaced"] = Head(number, head) in chosen
                for name in _KINDS.keys() & costs.divergence.keys():
                    values[f"explained_by_{name}"] = float(costs.explained(name)[head])
                if self.increases:
                    values["loss_increase"] = _finite(self.increases[Head(number, head)])
                for kind in ("divergence", "error"):
                    values[kind] = {name: float(each[head]) for name, each in getattr(costs, kind).items()}
                rows.append(values)
        return {
            "model": self.model,
            "synthesizer": self.synthesizer,
            "function": self.replaced,
            "replaced_heads": len(chosen),
            "loss": {name: _finite(value) for name, value in self.loss.items()},
            **self.speed,
            "heads": rows,
        }

    def tables(self) -> list[Table]:
        """The heads, if they were measured, and both models."""
        found = []
        if self.costs:
            count = len(self.costs[0].divergence["uniform"])
            columns = ["layer", *(f"head {head + 1}" for head in range(count))]
            last = "increase of the loss" if self.increases else "error of the layer's output"
            title = f"explained by position / by own token, {last}; * now {self.replaced}"
            table = Table(*columns, title=title, box=None, pad_edge=False)
            for number, ((stack, layer), costs) in enumerate(zip(self.layers, self.costs, strict=True)):
                table.add_row(f"{stack} {layer}", *(self._cell(costs, Head(number, head)) for head in range(count)))
            found.append(table)
        table = Table("", "before", "after", box=None, pad_edge=False)
        for title, values in self._summary():
            table.add_row(title, *values)
        return [*found, table]

    def _cell(self, costs: HeadCosts, head: Head) -> str:
        shares = " / ".join(f"{100 * float(costs.explained(name)[head.head]):.0f}" for name in _KINDS)
        error = float(costs.error[cast(str, self.replaced)][head.head])
        cost = f"{self.increases[head]:.4f}" if self.increases else f"{error:.2f}"
        return f"{shares} %, {cost}{'*' if head in self.heads else ''}"

    def _summary(self) -> list[tuple[str, tuple[str, str]]]:
        rows = []
        if self.costs:
            parts = []
            for stack in dict.fromkeys(stack for stack, _ in self.layers):
                layers = [number for number, (name, _) in enumerate(self.layers) if name == stack]
                every = sum(len(self.costs[number].divergence["uniform"]) for number in layers)
                parts.append(f"{stack} {sum(head.layer in layers for head in self.heads)} of {every}")
            rows.append(("heads replaced", ("", ", ".join(parts))))
        if self.loss:
            after = [f"{self.loss[name]:.4f} {name}" for name in ("calibrated", "distilled") if name in self.loss]
            rows.append(("loss on held-out text", (f"{self.loss['before']:.4f}", ", ".join(after))))
        before, after = self.speed["before"], self.speed["after"]
        times = [f"{each['milliseconds']:.1f} ms" for each in (before, after)]
        rows.append((str(self.speed["timed"]), (times[0], f"{times[1]} ({self.speed['speedup']:.2f} times as fast)")))
        if before["cache_bytes"]:
            sizes = [f"{each['cache_bytes'] / 2**20:.2f} MiB" for each in (before, after)]
            rows.append(("cache of these", (sizes[0], sizes[1])))
        return rows


def _finite(number: float) -> float | None:
    """JSON has no other numbers."""
    return number if math.isfinite(number) else None


@torch.no_grad()
def compare_speed(
    before: SynthesizerPreTrainedModel, after: SynthesizerPreTrainedModel, batch: Batch
) -> dict[str, Any]:
    """The time of both models, turn by turn, for the rows of a batch: of generation, or else of a forward."""
    models, sizes = {"before": before, "after": after}, dict.fromkeys(("before", "after"), 0)
    inputs = {name: tensor[:_ROWS].to(before.device) for name, tensor in batch.items()}
    config = before.config
    if not before.can_generate():
        if config.is_encoder_decoder:
            inputs["decoder_input_ids"] = inputs["input_ids"]
        turns = {name: lambda model=model: run(model, inputs) for name, model in models.items()}
        timed = f"forward of {len(inputs['input_ids'])} rows"
    else:
        # Half of the maximum length at most is prompt.
        longest = min(_PROMPT, max(1, config.max_position_embeddings // 2))
        prompt = slice(None) if config.is_encoder_decoder else slice(longest)
        given = {name: inputs[name][:, prompt] for name in ("input_ids", "attention_mask")}
        length = 1 if config.is_encoder_decoder else given["input_ids"].shape[1]
        new = max(1, min(_NEW, config.max_position_embeddings - length))
        settings: dict[str, Any] = {"min_new_tokens": new, "max_new_tokens": new, "do_sample": False, "num_beams": 1}
        # Whatever the model's own settings are.
        settings |= {"use_cache": True, "num_return_sequences": 1}

        def generate(model: Any) -> Any:
            return model.generate(**given, **settings, return_dict_in_generate=True)

        sizes = {name: cache_bytes(generate(model).past_key_values) for name, model in models.items()}
        turns = {name: lambda model=model: generate(model) for name, model in models.items()}
        timed = f"generation of {len(given['input_ids'])} × {new} tokens"
    times = time_turns(turns, "before", _REPEATS, 1, before.device.type)
    figures = {
        name: {"milliseconds": times[name][0][1], "cache_bytes": sizes[name], "parameters": model.num_parameters()}
        for name, model in models.items()
    }
    return {"timed": timed, "speedup": times["after"][1][1], **figures}


def draw_heads(report: ConversionReport) -> Figure:
    """Heat maps of layers (rows) and heads (columns): the darker, the more replaceable; framed where replaced."""
    name = cast(str, report.replaced)
    explained = {
        f"explained by {text}": torch.stack([costs.explained(kind) for costs in report.costs])
        for kind, text in _KINDS.items()
    }
    # By title the numbers, and the shade of each, 0 … 1.
    panels = {title: (values, values) for title, values in explained.items()}
    rows, columns = next(iter(explained.values())).shape
    errors = torch.stack([costs.error[name] for costs in report.costs])
    panels[f"relative error of the output with {name}"] = errors, 1 - errors
    if report.increases:
        values = torch.tensor([[report.increases[Head(n, head)] for head in range(columns)] for n in range(rows)])
        panels[f"increase of the loss with {name} (nats)"] = values, 1 - values / values.max().clamp_min(1e-9)
    size = (len(panels) * max(2.8, 0.45 * columns) + 1.5, max(2.2, 0.35 * rows) + 1.2)
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, (title, (values, shades)) in zip(axes, panels.items(), strict=True):
        axis.imshow(shades.clamp(0, 1).numpy(), vmin=0, vmax=1, cmap="Blues", aspect="auto")
        for (row, column), value in np.ndenumerate(values.numpy()):
            color = "white" if shades[row, column] > 0.6 else "black"
            text = f"{value:.3f}" if "loss" in title else f"{value:.2f}"
            axis.text(column, row, text, ha="center", va="center", fontsize=7, color=color)
        for head in report.heads:
            place = (head.head - 0.46, head.layer - 0.46)
            axis.add_patch(Rectangle(place, 0.92, 0.92, fill=False, edgecolor="#d62728", linewidth=1.5))
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("head", fontsize=9)
        axis.set_xticks(range(columns), range(1, columns + 1), fontsize=8)
    axes[0].set_yticks(range(rows), [f"{stack} {layer}" for stack, layer in report.layers], fontsize=8)
    figure.suptitle(f"Heads of self-attention; darker: easier to replace; framed: replaced by {name}", fontsize=11)
    return figure


def describe_layers(model: SynthesizerPreTrainedModel) -> list[tuple[str, int]]:
    """Stack and number of each layer."""
    return [(layer.stack, layer.number) for layer in attention_layers(model)]
