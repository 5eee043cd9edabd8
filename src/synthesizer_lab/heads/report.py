"""What a conversion changed: the table that is printed, and the numbers in report.json."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from synthetic_attention.models import SynthesizerPreTrainedModel
from synthetic_attention.models.cache import cache_bytes

from ..attention.fitting import FUNCTIONS, explained
from ..attention.layers import Batch, run
from ..benchmark.harness import time_turns
from .choose import Head

__all__ = ["ConversionReport", "compare_speed"]

# Generation is timed with up to so many rows, tokens of a causal model's prompt, and new tokens.
_ROWS, _PROMPT, _NEW = 32, 8, 32
_REPEATS = 5


@dataclass
class ConversionReport:
    """The result of a conversion.

    Attributes:
        synthesizer: of the new model.
        function: in the replaced heads; None if no head was measured, and then the next four are empty.
        layers: stack and number of each layer, encoder first.
        divergences: of each layer, see `measure_divergences`.
        heads: those replaced.
        increases: of the loss, if this head alone is replaced; empty if all heads are replaced.
        loss: of the text that is held out, see `mean_loss`: before, calibrated, distilled.
        speed: see `compare_speed`.
    """

    model: str
    synthesizer: Any
    function: str | None = None
    layers: Sequence[tuple[str, int]] = ()
    divergences: Sequence[Mapping[str, Tensor]] = ()
    heads: Sequence[Head] = ()
    increases: Mapping[Head, float] = field(default_factory=dict)
    loss: dict[str, float] = field(default_factory=dict)
    speed: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The content of report.json; heads count from 1, as layers do."""
        rows = []
        for index, ((stack, layer), divergences) in enumerate(zip(self.layers, self.divergences, strict=True)):
            for number in range(len(divergences["uniform"])):
                head = Head(index, number)
                row = {"stack": stack, "layer": layer, "head": number + 1, "replaced": head in self.heads}
                row |= {f"explained_by_{name}": float(explained(divergences, name)[number]) for name in FUNCTIONS}
                if self.increases:
                    row["loss_increase"] = _finite(self.increases[head])
                rows.append({**row, "divergence": {name: float(each[number]) for name, each in divergences.items()}})
        return {
            "model": self.model,
            "synthesizer": self.synthesizer,
            "function": self.function,
            "replaced_heads": len(self.heads),
            "loss": {name: _finite(value) for name, value in self.loss.items()},
            **self.speed,
            "heads": rows,
        }

    def table(self) -> Table:
        """Both models."""
        rows = self.to_dict()["heads"]
        table = Table("", "before", "after", box=None, pad_edge=False)
        for stack in dict.fromkeys(row["stack"] for row in rows):
            replaced = [row["replaced"] for row in rows if row["stack"] == stack]
            table.add_row(f"heads replaced, {stack}", "", f"{sum(replaced)} of {len(replaced)}")
        if self.loss:
            after = ", ".join(f"{value:.4f} {name}" for name, value in self.loss.items() if name != "before")
            table.add_row("loss on held-out text", f"{self.loss['before']:.4f}", after)
        before, after = self.speed["before"], self.speed["after"]
        times = [f"{each['milliseconds']:.1f} ms" for each in (before, after)]
        table.add_row(self.speed["timed"], times[0], f"{times[1]} ({self.speed['speedup']:.2f} times as fast)")
        if before["cache_bytes"]:
            table.add_row("cache of these", *(f"{each['cache_bytes'] / 2**20:.2f} MiB" for each in (before, after)))
        return table


@torch.no_grad()
def compare_speed(
    before: SynthesizerPreTrainedModel, after: SynthesizerPreTrainedModel, batch: Batch
) -> dict[str, Any]:
    """The time of both models, turn by turn, for the rows of a batch: of generation, or else of a forward.

    For both "milliseconds", "cache_bytes" and "parameters"; what was "timed", and the "speedup".
    """
    models: dict[str, Any] = {"before": before, "after": after}
    inputs = {name: batch[name][:_ROWS].to(before.device) for name in ("input_ids", "attention_mask")}
    longest, is_pair, sizes = before.config.max_position_embeddings, before.config.is_encoder_decoder, dict[str, int]()
    if before.can_generate():
        if not is_pair:
            # Half of the maximum length at most is prompt.
            inputs = {name: each[:, : min(_PROMPT, max(1, longest // 2))] for name, each in inputs.items()}
        new = max(1, min(_NEW, longest - (1 if is_pair else inputs["input_ids"].shape[1])))
        # Whatever the model's own settings are.
        settings = {"do_sample": False, "num_beams": 1, "use_cache": True, "num_return_sequences": 1}
        settings |= {"min_new_tokens": new, "max_new_tokens": new, "return_dict_in_generate": True}
        turns = {name: partial(model.generate, **inputs, **settings) for name, model in models.items()}
        sizes = {name: cache_bytes(generate().past_key_values) for name, generate in turns.items()}
        timed = f"generation of {len(inputs['input_ids'])} × {new} tokens"
    else:
        inputs |= {"decoder_input_ids": inputs["input_ids"]} if is_pair else {}
        turns = {name: partial(run, model, inputs) for name, model in models.items()}
        timed = f"forward of {len(inputs['input_ids'])} rows"
    times = time_turns(turns, _REPEATS, 1, before.device.type)
    figures = {
        name: {
            "milliseconds": times[name][0][1],
            "cache_bytes": sizes.get(name, 0),
            "parameters": model.num_parameters(),
        }
        for name, model in models.items()
    }
    speedup = figures["before"]["milliseconds"] / figures["after"]["milliseconds"]
    return {"timed": timed, "speedup": speedup, **figures}


def _finite(number: float) -> float | None:
    """JSON has no other numbers."""
    return number if math.isfinite(number) else None
