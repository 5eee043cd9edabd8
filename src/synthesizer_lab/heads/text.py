"""Calibration text as batches of any model: the data of a task, parallel text, or lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from synthetic_attention.models import SynthesizerForMaskedLM, SynthesizerPreTrainedModel
from synthetic_attention.models.loss import IGNORED

from ..data.classification import ENDINGS
from ..data.examples import pad, padded_inputs, token_batches
from ..data.files import read_lines
from ..data.tokenizer import Tokens
from ..errors import UserError
from ..tasks import get_task
from ..tasks.base import Task
from ..tasks.classification import Classification
from ..tasks.generation import output_limit

__all__ = ["CalibrationText", "read_batches"]

Batches = list[dict[str, Tensor]]
_TRAIN = "train"
# Every seventh token is masked, about as many as for BERT.
_MASKED = 7


@dataclass(frozen=True)
class CalibrationText:
    """Where calibration text comes from.

    Attributes:
        path: data as `train` reads it, or a text file with an input per line.
        source, target: the languages of parallel text, for a model without a task.
        examples: how many to read, the first ones.
        batch_tokens: tokens of a batch, source and target together.
    """

    path: Path
    source: str | None = None
    target: str | None = None
    examples: int = 1000
    batch_tokens: int = 2048


def read_batches(
    model: SynthesizerPreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: CalibrationText,
    task: Task[Any, Any] | None = None,
) -> tuple[Batches, Batches]:
    """Batches to calibrate on, and those of the last tenth of the examples, which is held out.

    They have labels and are padded on the right, with sequences of similar length, in a random order with a fixed seed.
    The task of a run reads and encodes its training data. Lines are encoded by the tokenizer, and cut at the maximum
    length. What a model is to predict for them: a language model the text, with some tokens masked if it is
    bidirectional; an encoder-decoder and a classifier what they predict themselves.

    Raises:
        UserError: the text cannot be read, or has fewer than two examples.
    """
    longest, path = model.config.max_position_embeddings, text.path
    if task is not None and not (path.is_file() and _has_lines(task, path)):
        return _of_task(model, tokenizer, text, task)
    if path.is_file():
        sources = [line for line in islice(read_lines(path), text.examples) if line.strip()]
        targets: list[Tokens] | None = None
    elif text.source and text.target and model.config.is_encoder_decoder:
        translation = get_task("translation").from_options({"source": text.source, "target": text.target})
        pairs = _read(translation, text)
        rows = pairs.complete()
        sources = [pairs.sources[row] for row in rows]
        targets = _encoded(tokenizer, longest, text_target=[pairs.targets[row] for row in rows])
    else:
        raise UserError(
            f"{path}: not a text file; expected a file with an input per line, or for an encoder-decoder a folder of "
            "parallel text with --source and --target"
        )
    if not sources:
        raise UserError(f"{path}: no text; expected an input per line")
    ids = _encoded(tokenizer, longest, text=sources)
    if model.config.is_decoder and not model.config.is_encoder_decoder:
        ids = [_started(row, model.config.bos_token_id, longest) for row in ids]
    costs = [len(row) if targets is None else len(row) + len(targets[n]) for n, row in enumerate(ids)]

    def batch_of(rows: list[int]) -> dict[str, Tensor]:
        batch = padded_inputs([ids[row] for row in rows], model.config.pad_token_id or 0)
        if targets is None:
            batch = _with_labels(model, tokenizer, {name: each.to(model.device) for name, each in batch.items()})
        else:
            batch["labels"] = pad([targets[row] for row in rows], IGNORED)
        return batch

    return _split(costs, text, batch_of)


def _has_lines(task: Task[Any, Any], path: Path) -> bool:
    """Whether a file cannot be the data of a task: it has an input per line."""
    if isinstance(task, Classification):
        return not path.name.removesuffix(".gz").endswith(ENDINGS)
    return task.name in ("translation", "language-modeling")


def _read(task: Task[Any, Any], text: CalibrationText) -> Any:
    """The first examples of the training split."""
    if isinstance(task, Classification):
        # The classes are those of all examples.
        split = task.read(text.path, _TRAIN)
        return replace(split, records=split.records[: text.examples])
    records = task.records(text.path, _TRAIN, stream=True)
    if not records.in_parts:
        return task.read(text.path, _TRAIN)
    return records.make([*islice(records.read(), text.examples)])


def _of_task(model: Any, tokenizer: Any, text: CalibrationText, task: Task[Any, Any]) -> tuple[Batches, Batches]:
    split, config = _read(task, text), model.config
    if isinstance(task, Classification) and task.config_changes(split, tokenizer)["id2label"] != config.id2label:
        classes = ", ".join([*config.id2label.values()][:5])
        raise UserError(f"{text.path}: its classes are not those of the model; expected {classes}")
    examples = task.encode(split, tokenizer, config.max_position_embeddings, "truncate")
    costs = examples.lengths().sum(axis=1)[: text.examples]
    return _split(costs, text, lambda rows: task.collate([examples[row] for row in rows], config.pad_token_id or 0))


def _split(
    costs: Sequence[int] | np.ndarray, text: CalibrationText, batch_of: Callable[[list[int]], dict[str, Tensor]]
) -> tuple[Batches, Batches]:
    """The batches of the first examples and of the last tenth; `costs` (N,) are the tokens of each example."""
    if (count := len(costs)) < 2:
        raise UserError(f"{text.path}: got {count} example; expected at least 2: the last tenth is held out")
    costs, first = np.asarray(costs), count - max(1, count // 10)

    def batches(rows: np.ndarray) -> Batches:
        groups = token_batches(costs, rows[np.argsort(costs[rows], kind="stable")], text.batch_tokens)
        return [batch_of(groups[index]) for index in np.random.default_rng(0).permutation(len(groups))]

    return batches(np.arange(first)), batches(np.arange(first, count))


def _encoded(tokenizer: Any, longest: int, **texts: list[str]) -> list[Tokens]:
    rows: Iterable[list[int]] = tokenizer(**texts, truncation=True, max_length=longest)["input_ids"]
    return [np.array(row, dtype=np.int32) for row in rows]


def _started(row: Tokens, start: int | None, longest: int) -> Tokens:
    """A text with the token that begins one, if the model has such a token."""
    return row if start is None or (len(row) and row[0] == start) else np.insert(row, 0, start)[:longest]


@torch.no_grad()
def _with_labels(model: Any, tokenizer: Any, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    ids, mask = batch["input_ids"], batch["attention_mask"].bool()
    if model.config.is_encoder_decoder:
        limit = output_limit(ids.shape[1], model.config.max_position_embeddings)
        settings: dict[str, Any] = {"num_beams": 1, "do_sample": False, "num_return_sequences": 1}
        output = model.generate(**batch, **settings, max_new_tokens=limit, return_dict_in_generate=False)[:, 1:]
        return {**batch, "labels": output.masked_fill(output == model.config.pad_token_id, IGNORED)}
    if model.can_generate():
        labels = ids.where(mask, IGNORED)
        labels[:, 0] = IGNORED
        return {**batch, "labels": labels}
    if isinstance(model, SynthesizerForMaskedLM):
        chosen = mask & ~torch.isin(ids, torch.tensor(tokenizer.all_special_ids, device=ids.device))
        chosen &= chosen.flatten().cumsum(0).view_as(ids) % _MASKED == 1
        hidden = ids if tokenizer.mask_token_id is None else ids.masked_fill(chosen, tokenizer.mask_token_id)
        return {**batch, "input_ids": hidden, "labels": ids.where(chosen, IGNORED)}
    logits = model(**batch).logits
    if logits.dim() == 3:
        return {**batch, "labels": logits.argmax(-1).where(mask, IGNORED)}
    kind = model.config.problem_type or ("regression" if logits.shape[1] == 1 else "single_label_classification")
    choices = {"regression": logits, "single_label_classification": logits.argmax(-1)}
    return {**batch, "labels": choices.get(kind, (logits > 0).float())}
