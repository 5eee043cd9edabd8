"""What a conversion changed: the numbers in report.json, and the table that is printed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from synthetic_attention.models import SynthesizerPreTrainedModel
from synthetic_attention.models.cache import cache_bytes

from ..attention.fitting import explained
from ..attention.layers import AttentionLayer, Batch, run
from ..benchmark.harness import time_turns
from .choose import Head

# Generation is timed with up to so many rows, tokens of a causal model's prompt, and new tokens.
_ROWS, _PROMPT, _NEW = 32, 8, 32
_REPEATS = 5


def describe_heads(
    layers: Sequence[AttentionLayer],
    divergences: Sequence[Mapping[str, Tensor]],
    replaced: Sequence[Head],
    increases: Mapping[Head, float],
) -> list[dict[str, Any]]:
    """A row for each head; they count from 1, as layers do.

    Args:
        divergences: of each layer, see `measure_divergences`.
        increases: of the loss, if this head alone is replaced; empty if all heads are replaced.
    """
    rows = []
    for index, (layer, found) in enumerate(zip(layers, divergences, strict=True)):
        for number, shares in enumerate(explained(found)):
            head = Head(index, number)
            place = {"stack": layer.stack, "layer": layer.number, "head": number + 1, "replaced": head in replaced}
            loss = {"loss_increase": finite(increases[head])} if increases else {}
            divergence = {name: float(each[number]) for name, each in found.items()}
            rows.append({**place, **shares, **loss, "divergence": divergence})
    return rows


def make_table(report: Mapping[str, Any]) -> Table:
    """Both models of a report."""
    table = Table("", "before", "after", box=None, pad_edge=False)
    for stack in dict.fromkeys(row["stack"] for row in report["heads"]):
        replaced = [row["replaced"] for row in report["heads"] if row["stack"] == stack]
        table.add_row(f"heads replaced, {stack}", "", f"{sum(replaced)} of {len(replaced)}")
    if losses := {name: math.nan if loss is None else loss for name, loss in report["loss"].items()}:
        after = ", ".join(f"{loss:.4f} {name}" for name, loss in losses.items() if name != "before")
        table.add_row("loss on held-out text", f"{losses['before']:.4f}", after)
    before, after = report["before"], report["after"]
    times = [f"{each['milliseconds']:.1f} ms" for each in (before, after)]
    table.add_row(report["timed"], times[0], f"{times[1]} ({report['speedup']:.2f} times as fast)")
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
    times = {name: quartiles[1] for name, (quartiles, _) in time_turns(turns, _REPEATS, 1, before.device.type).items()}
    figures = {
        name: {"milliseconds": times[name], "cache_bytes": sizes.get(name, 0), "parameters": model.num_parameters()}
        for name, model in models.items()
    }
    return {"timed": timed, "speedup": times["before"] / times["after"], **figures}


def finite(number: float) -> float | None:
    """JSON has no other numbers."""
    return number if math.isfinite(number) else None
