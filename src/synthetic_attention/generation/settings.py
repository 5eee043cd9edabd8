"""The settings that the searches of `loop.py` know, read from what transformers prepares for a call of `generate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    MaxLengthCriteria,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    StoppingCriteriaList,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.stopping_criteria import EosTokenCriteria

# Processors that look at each row for itself.
_BY_ROW = (NoRepeatNGramLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper)
_SHORTEST = (MinLengthLogitsProcessor, MinNewTokensLengthLogitsProcessor)
# With a larger penalty, powers of lengths leave the range of float32.
_LARGEST_PENALTY = 10.0


@dataclass(frozen=True)
class Settings:
    """The settings of a search.

    Attributes:
        config: transformers' own.
        prompt_length: tokens before the first new one.
        min_length: no sequence ends before it has so many tokens, the prompt included.
        ends: the tokens that end a sequence.
        filler: the token after the end of a sequence.
        suppressed: tokens that are never generated.
        processors: what else changes the scores, in order.
    """

    config: GenerationConfig
    prompt_length: int
    min_length: int
    ends: list[int]
    filler: int
    suppressed: list[int]
    processors: LogitsProcessorList

    @classmethod
    def read(
        cls,
        config: GenerationConfig,
        processors: LogitsProcessorList,
        criteria: StoppingCriteriaList,
        prompt_length: int,
    ) -> Settings | None:
        """The settings of a call, as `decode` gets them; None if there is something that the searches do not know."""
        ends = [] if config._eos_token_tensor is None else config._eos_token_tensor.tolist()
        filler = 0 if config._pad_token_tensor is None else int(config._pad_token_tensor)
        for each in criteria:
            if type(each) is MaxLengthCriteria and each.max_length == config.max_length:
                continue
            if type(each) is not EosTokenCriteria or each.eos_token_id.tolist() != ends:
                return None
        min_length, suppressed, others = 0, list[int](), LogitsProcessorList()
        for each in processors:
            if type(each) is SuppressTokensLogitsProcessor:
                suppressed += each.suppress_tokens.tolist()
            elif type(each) in _BY_ROW:
                others.append(each)
            elif type(each) not in _SHORTEST or each.eos_token_id.tolist() != ends:
                return None
            elif isinstance(each, MinLengthLogitsProcessor):
                min_length = max(min_length, each.min_length)
            else:
                min_length = max(min_length, each.prompt_length_to_skip + each.min_new_tokens)
        if config.num_beams > 1:
            if config.do_sample or abs(config.length_penalty) > _LARGEST_PENALTY:
                return None
            # transformers' beam search fills with the end token where the padding token is 0.
            filler = (filler or ends[0]) if ends else -1
        return cls(config, prompt_length, min_length, ends, filler, suppressed, others)

    def process(self, scores: Tensor, rows: Sequence[list[int]]) -> None:
        """Change scores (N, V) in place, after these rows of tokens."""
        banned = self.suppressed + (self.ends if len(rows[0]) < self.min_length else [])
        if banned := [token for token in banned if 0 <= token < scores.shape[1]]:
            scores[:, banned] = -torch.inf
        if self.processors:
            ids: Any = torch.tensor(rows, device=scores.device)
            scores[:] = self.processors(ids, cast(Any, scores))
