"""Calibration text as batches of any model: the data of a run, or lines."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from synthetic_attention.models import SynthesizerForMaskedLM, SynthesizerModel
from synthetic_attention.models.loss import IGNORED

from ..data.examples import padded_inputs, token_batches
from ..data.files import read_lines
from ..errors import UserError
from ..tasks.base import Task
from ..tasks.classification import labels_for
from ..tasks.generation import output_limit

Batches = list[dict[str, Tensor]]
# Every seventh token is masked, about as many as for BERT.
_MASKED = 7


def read_batches(
    model: Any, tokenizer: Any, text: Path, task: Task | None = None, examples: int = 1000, batch_tokens: int = 2048
) -> tuple[Batches, Batches]:
    """Batches of some examples to calibrate on, and those of a tenth of these, which is held out.

    They have labels and are padded on the right, with sequences of similar length, in a random order with a fixed seed.
    The task of a run reads and encodes its training data; the examples are drawn from it. Of a file they are the first
    lines, encoded by the tokenizer and cut at the maximum length. The label of a language model is the text, with some
    tokens masked if it is bidirectional; that of an encoder-decoder or a classifier is its own output, that of a model
    without a head its last hidden state.

    Raises:
        UserError: the text cannot be read, or has fewer than two examples.
    """
    longest, padding = model.config.max_position_embeddings, model.config.pad_token_id or 0
    if task is not None:
        split = task.records(text, "train").load()
        encoded = task.encode(split, tokenizer, longest, "truncate", **labels_for(model, split))
        # Of all data: files can be sorted, and GLUE is read task by task. In 40 stretches: neighbours can share text.
        random = np.random.default_rng(0)
        parts = np.array_split(np.sort(random.permutation(len(encoded))[:examples]), 40)
        chosen = np.concatenate([parts[index] for index in random.permutation(len(parts))])
        costs, items = encoded.lengths()[chosen].sum(axis=1), [encoded[row] for row in chosen]
        return _split(costs, text, batch_tokens, lambda rows: task.collate([items[row] for row in rows], padding))
    if not text.is_file():
        raise UserError(
            f"{text}: not a text file; expected a file with an input per line, or a MODEL that is a run of a task "
            "(convert --task) for data as `train` reads it"
        )
    lines = [*islice((line for line in read_lines(text) if line.strip()), examples)]
    ids = [np.array(tokenizer(line, truncation=True, max_length=longest)["input_ids"], np.int32) for line in lines]
    is_causal = model.config.is_decoder and not model.config.is_encoder_decoder
    if is_causal and (start := model.config.bos_token_id) is not None:
        ids = [row if len(row) and row[0] == start else np.insert(row, 0, start)[:longest] for row in ids]

    def batch_of(rows: list[int]) -> dict[str, Tensor]:
        batch = padded_inputs([ids[row] for row in rows], padding)
        return _with_labels(model, tokenizer, {name: each.to(model.device) for name, each in batch.items()})

    return _split(np.array([len(row) for row in ids]), text, batch_tokens, batch_of)


def _split(
    costs: np.ndarray, text: Path, batch_tokens: int, batch_of: Callable[[list[int]], dict[str, Tensor]]
) -> tuple[Batches, Batches]:
    """The batches of the first examples and of the last tenth; `costs` (N,) are the tokens of each example."""
    if (count := len(costs)) < 2:
        raise UserError(f"{text}: got {count} example; expected at least 2: the last tenth is held out")
    first = count - max(1, count // 10)

    def batches(rows: np.ndarray) -> Batches:
        groups = token_batches(costs, rows[np.argsort(costs[rows], kind="stable")], batch_tokens)
        return [batch_of(groups[index]) for index in np.random.default_rng(0).permutation(len(groups))]

    return batches(np.arange(first)), batches(np.arange(first, count))


@torch.no_grad()
def _with_labels(model: Any, tokenizer: Any, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The batch of lines with what the model is to predict."""
    ids, mask, config = batch["input_ids"], batch["attention_mask"].bool(), model.config
    if isinstance(model, SynthesizerModel):
        return {**batch, "labels": model(**batch).last_hidden_state}
    if config.is_encoder_decoder:
        limit = output_limit(ids.shape[1], config.max_position_embeddings)
        settings = {"num_beams": 1, "do_sample": False, "num_return_sequences": 1, "return_dict_in_generate": False}
        output = model.generate(**batch, **settings, max_new_tokens=limit)[:, 1:]
        return {**batch, "labels": output.masked_fill(output == config.pad_token_id, IGNORED)}
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
    kind = config.problem_type or ("regression" if logits.shape[1] == 1 else "single_label_classification")
    choices = {"regression": logits, "single_label_classification": logits.argmax(-1)}
    return {**batch, "labels": choices.get(kind, (logits > 0).float())}
