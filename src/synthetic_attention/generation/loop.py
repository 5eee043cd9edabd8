"""The decode loop: greedy search, sampling and beam search, with the results of transformers' `generate()`.

transformers prepares everything (settings, prompts, encoder, logits processors) and calls `decode` for the loop. The
bookkeeping is on the host: tokens are Python lists, read once per step.

Shape legend: B sources, M beams, N = B · M rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    StoppingCriteriaList,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

from .step import GROUPS, Decoder, can_step

_PROCESSORS = (
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
# transformers' loop of each mode.
_LOOPS = {
    GenerationMode.GREEDY_SEARCH: "_sample",
    GenerationMode.SAMPLE: "_sample",
    GenerationMode.BEAM_SEARCH: "_beam_search",
    GenerationMode.BEAM_SAMPLE: "_beam_search",
}
# What else a model may be given. The mask of a decoder's prompt, for example, is read by transformers' loop only.
_INPUTS = {"attention_mask", "encoder_outputs", "past_key_values", "use_cache", "logits_to_keep"}
# With these, transformers needs more than it hands to a custom loop.
_OF_TRANSFORMERS = ("synced_gpus", "assistant_model", "prompt_lookup_num_tokens", "past_key_values")
# Finished sources are dropped when they are at least this part of all.
_FINISHED = 1 / 8
# With fewer columns of scores, one search over all of them is as fast.
_MANY_COLUMNS = 2048
# transformers' log probability of beams that do not count.
_IMPOSSIBLE = -1e9


def generate(model: Any, *inputs: Tensor, **settings: Any) -> Any:
    """`model.generate()` with this package's decode loop: the same arguments, the same tokens.

    Models, inputs and settings that the loop does not support run with transformers' own.

    Args:
        model: any model of transformers; the loop is for `SynthesizerForConditionalGeneration` and
            `SynthesizerForCausalLM`, also with adapters or quantized layers inside.
        inputs, settings: as in `model.generate()`.

    Returns:
        Tokens (B · num_return_sequences, length) with those of the prompts, as `model.generate()` does.
    """
    if any(settings.get(name) not in (None, False) for name in _OF_TRANSFORMERS) or not can_step(model):
        return model.generate(*inputs, **settings)
    # transformers does not hand a streamer to a custom loop.
    loop = partial(decode, streamer=settings.get("streamer"))
    return model.generate(*inputs, custom_generate=loop, **settings)


def decode(
    model: Any,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    streamer: Any = None,
    **model_kwargs: Any,
) -> Any:
    """The loop, for `model.generate(…, custom_generate=decode)`.

    Args:
        input_ids: (B · M, P), the prompts, each repeated for its beams.
        logits_processor, stopping_criteria, generation_config, model_kwargs: as transformers prepares them.

    Raises:
        ValueError: a mode other than greedy search, sampling and beam search, or a streamer with beams.
    """
    mode = generation_config.get_generation_mode()
    if mode not in _LOOPS:
        raise ValueError(
            f"got settings of {mode.value}; expected those of greedy search, sampling or beam search. Call "
            "model.generate() without custom_generate"
        )
    beams = generation_config.num_beams or 1
    if streamer is not None and beams > 1:
        raise ValueError("got a streamer with num_beams > 1; expected num_beams=1, as beams change their tokens")
    if not _supports(model, mode, logits_processor, stopping_criteria, generation_config, model_kwargs):
        loop = getattr(type(model), _LOOPS[mode])
        streaming = {} if beams > 1 else {"streamer": streamer}
        return loop(
            model,
            input_ids,
            logits_processor=logits_processor,
            stopping_criteria=stopping_criteria,
            generation_config=generation_config,
            **streaming,
            **model_kwargs,
        )
    settings = Settings.of(input_ids, logits_processor, stopping_criteria, generation_config)
    with torch.inference_mode():
        rows = _search(model, input_ids, settings, streamer, model_kwargs)
    length = max(map(len, rows))
    rows = [row + [settings.filler] * (length - len(row)) for row in rows]
    return torch.tensor(rows, dtype=input_ids.dtype, device=input_ids.device)


def _search(
    model: Any, input_ids: Tensor, settings: Settings, streamer: Any, inputs: dict[str, Any]
) -> list[list[int]]:
    """Prepare the model and run the search: the tokens of each result."""
    beams = settings.config.num_beams or 1

    def of_sources(x: Tensor | None) -> Tensor | None:
        return None if x is None else x[::beams].to(model.device)

    mask, encoded, prompts = of_sources(inputs.get("attention_mask")), inputs.get("encoder_outputs"), input_ids[::beams]
    source: dict[str, Any] = {}
    if encoded is not None:
        source = {"encoder_hidden_states": of_sources(encoded.last_hidden_state), "encoder_mask": mask}
        mask = None
    max_length = settings.max_length
    decoder = Decoder(model, prompts.to(model.device), mask, beams=beams, max_length=max_length, **source)
    search = _search_beams if beams > 1 else _search_rows
    return search(decoder, prompts.tolist(), settings, streamer)


def _supports(
    model: Any,
    mode: GenerationMode,
    processors: LogitsProcessorList,
    criteria: StoppingCriteriaList,
    config: GenerationConfig,
    inputs: dict[str, Any],
) -> bool:
    """Whether the loop has all settings, and the model's step is what `Decoder` computes."""
    if mode == GenerationMode.BEAM_SAMPLE or config.return_dict_in_generate or config.use_cache is False:
        return False
    if config.cache_implementation not in (None, "dynamic") or config.prefill_chunk_size is not None:
        return False
    if {name for name, value in inputs.items() if value is not None} - _INPUTS:
        return False
    if getattr(inputs.get("past_key_values"), "_is_user_defined", False):
        return False
    if any(type(processor) not in _PROCESSORS for processor in processors):
        return False
    if any(type(criterion) not in (MaxLengthCriteria, EosTokenCriteria) for criterion in criteria):
        return False
    mask = inputs.get("attention_mask")
    if mask is not None and not model.config.is_encoder_decoder and not _is_left_padded(mask):
        return False
    return can_step(model)


def _is_left_padded(mask: Tensor) -> bool:
    return mask.dim() == 2 and bool(mask[:, -1].all()) and not bool((mask[:, 1:] < mask[:, :-1]).any())


@dataclass
class Settings:
    """What the loop reads of the settings.

    Attributes:
        prompt_length, max_length: tokens before the first new one, and of the longest sequence.
        ends: the tokens that end a sequence.
        filler: the token after the end of a sequence.
        suppressed: tokens that are never generated.
        min_length: no sequence ends before it has so many tokens, the prompt included.
        processors: the others, in their order.
    """

    prompt_length: int
    max_length: int
    config: GenerationConfig
    ends: list[int]
    filler: int
    suppressed: list[int] = field(default_factory=list)
    min_length: int = 0
    processors: list[Any] = field(default_factory=list)

    @classmethod
    def of(
        cls, input_ids: Tensor, processors: LogitsProcessorList, criteria: StoppingCriteriaList, config: Any
    ) -> Settings:
        """Sort the processors and stopping criteria that transformers made."""
        of_end = [criterion for criterion in criteria if isinstance(criterion, EosTokenCriteria)]
        ends = [token for criterion in of_end for token in criterion.eos_token_id.tolist()]
        pad = config._pad_token_tensor
        filler = 0 if pad is None else int(pad)
        if config.num_beams > 1:
            # transformers' beam search fills with the end token where the padding token is 0.
            filler = filler or ends[0] if ends else -1
        settings = cls(input_ids.shape[1], config.max_length, config, ends, filler)
        for processor in processors:
            if isinstance(processor, SuppressTokensLogitsProcessor):
                settings.suppressed += processor.suppress_tokens.tolist()
            elif isinstance(processor, MinLengthLogitsProcessor):
                settings.min_length = max(settings.min_length, processor.min_length)
            elif isinstance(processor, MinNewTokensLengthLogitsProcessor):
                least = processor.prompt_length_to_skip + processor.min_new_tokens
                settings.min_length = max(settings.min_length, least)
            else:
                settings.processors.append(processor)
        return settings

    def process(self, scores: Tensor, width: int, rows: Sequence[list[int]]) -> None:
        """Change scores (N, columns), of which `width` are of tokens, in place, after these rows of tokens."""
        banned = self.suppressed + (self.ends if len(rows[0]) < self.min_length else [])
        if banned:
            scores[:, banned] = -torch.inf
        if not self.processors:
            return
        # Only the blocking of n-grams reads the tokens.
        reads = any(isinstance(processor, NoRepeatNGramLogitsProcessor) for processor in self.processors)
        tokens = torch.tensor(rows if reads else [[]], device=scores.device)
        processed = scores[:, :width]
        for processor in self.processors:
            processed = processor(tokens, processed)
        scores[:, :width] = processed


def _search_rows(decoder: Decoder, prompts: list[list[int]], settings: Settings, streamer: Any) -> list[list[int]]:
    """Greedy search or sampling: the tokens of each row.

    In sampling all rows go on to the end, so that the random numbers are those that transformers draws.
    """
    do_sample, device = bool(settings.config.do_sample), decoder.like.device
    ends, filler = set(settings.ends), settings.filler
    rows = [list(prompt) for prompt in prompts]
    running, finished = list(rows), [False] * len(rows)
    while True:
        scores = decoder.step(torch.tensor([row[-1] for row in running], device=device))
        settings.process(scores, decoder.head.width, running)
        tokens = _sample(scores[:, : decoder.head.width]) if do_sample else _best_tokens(scores)
        for place, (row, token) in enumerate(zip(running, tokens.tolist(), strict=True)):
            row.append(filler if finished[place] else token)
            finished[place] |= token in ends
        if streamer is not None:
            streamer.put(torch.tensor([row[-1] for row in running]))
        if all(finished) or len(running[0]) >= settings.max_length:
            break
        if sum(finished) >= max(1, _FINISHED * len(finished)) and not do_sample and streamer is None:
            places = [place for place, is_done in enumerate(finished) if not is_done]
            decoder.keep(torch.tensor(places, device=device))
            running, finished = [running[place] for place in places], [False] * len(places)
    if streamer is not None:
        streamer.end()
    return rows


def _sample(scores: Tensor) -> Tensor:
    """(N, V) to (N,)."""
    return torch.multinomial(torch.softmax(scores, -1), 1).squeeze(1)


def _best_tokens(scores: Tensor) -> Tensor:
    """The tokens (N,) with the best scores (N, columns): of the columns of a grid with `GROUPS` rows, then in one."""
    if len(scores) == 1 or scores.shape[1] < _MANY_COLUMNS:
        return scores.argmax(-1)
    grid = scores.view(len(scores), GROUPS, -1)
    column = grid.amax(1).argmax(-1)
    row = grid.gather(2, column[:, None, None].expand(-1, GROUPS, -1)).squeeze(2).argmax(-1)
    return row * grid.shape[2] + column


@dataclass
class Beams:
    """The beams of one source, best first, and the best finished ones.

    Attributes:
        rows: the tokens of each.
        scores: the log probability of each. At first all beams are the same, and only one counts.
        parents: the place of each in the step before.
        finished: (score, tokens), at most as many as there are beams.
        is_done: whether these are final. (The beams go on until their source is dropped.)
    """

    rows: list[list[int]]
    scores: list[float]
    parents: list[int]
    finished: list[tuple[float, list[int]]] = field(default_factory=list)
    is_done: bool = False

    def advance(self, candidates: Sequence[tuple[float, int, int]], settings: Settings) -> None:
        """Go on with the best candidates (log probability, beam, token), best first.

        A candidate that ends is finished if it is among the best M; the others go on. A finished one has its log
        probability divided by (new tokens)^length_penalty.
        """
        beams, penalty, length = len(self.rows), settings.config.length_penalty, len(self.rows[0]) + 1
        new_tokens, is_last = length - settings.prompt_length, length >= settings.max_length
        ends = [is_last or token in settings.ends for _, _, token in candidates]
        for (score, beam, token), ended in list(zip(candidates, ends, strict=True))[:beams]:
            if ended and not self.is_done:
                self.finished.append((score / new_tokens**penalty, [*self.rows[beam], token]))
        # Stable, as all sorts here: of two with the same score the earlier one stays first.
        self.finished = sorted(self.finished, key=lambda item: -item[0])[:beams]
        going_on = [item for item, ended in zip(candidates, ends, strict=True) if not ended][:beams]
        if len(going_on) < beams:
            self.is_done = True
            return
        self.scores, self.parents, tokens = (list(column) for column in zip(*going_on, strict=True))
        self.rows = [[*self.rows[parent], token] for parent, token in zip(self.parents, tokens, strict=True)]
        if len(self.finished) == beams:
            # Whether a beam can still become better than the worst finished one.
            stopping = settings.config.early_stopping
            longest = stopping == "never" and penalty > 0
            most = settings.max_length - settings.prompt_length if longest else new_tokens
            self.is_done |= stopping is True or self.scores[0] / most**penalty <= self.finished[-1][0]


def _search_beams(decoder: Decoder, prompts: list[list[int]], settings: Settings, streamer: None) -> list[list[int]]:
    """Beam search: the tokens of the best `num_return_sequences` of each source."""
    beams, device = settings.config.num_beams, decoder.like.device
    start = [0.0] + [_IMPOSSIBLE] * (beams - 1)
    searches = [Beams([list(prompt)] * beams, start, list(range(beams))) for prompt in prompts]
    running, count = list(searches), max(2, 1 + len(settings.ends)) * beams
    while True:
        rows = [row for search in running for row in search.rows]
        scores = decoder.step(torch.tensor([row[-1] for row in rows], device=device))
        log_probs = decoder.head.log_softmax(scores)
        settings.process(log_probs, decoder.head.width, rows)
        so_far = torch.tensor([search.scores for search in running], device=device)
        values, places = _best_candidates(log_probs, so_far, count)
        columns = scores.shape[1]
        for search, own, where in zip(running, values.tolist(), places.tolist(), strict=True):
            pairs = zip(own, where, strict=True)
            search.advance([(value, *divmod(place, columns)) for value, place in pairs], settings)
        done = sum(search.is_done for search in running)
        if done == len(running):
            break
        if done >= _FINISHED * len(running):
            kept = [place for place, search in enumerate(running) if not search.is_done]
            decoder.keep(torch.tensor(kept, device=device))
            running = [running[place] for place in kept]
        parents = [beams * place + beam for place, search in enumerate(running) for beam in search.parents]
        if parents != list(range(len(parents))):
            decoder.reorder(torch.tensor(parents, device=device))
    best = settings.config.num_return_sequences
    return [row for search in searches for _, row in search.finished[:best]]


def _best_candidates(log_probs: Tensor, so_far: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The best continuations of each source, best first: (B, count) sums, and their places beam · columns + token.

    As in `_best_tokens`, the search is among the columns of a grid first: the best ones are in the best columns.

    Args:
        log_probs: (B · M, columns), of the next token.
        so_far: (B, M), of the tokens so far.
    """
    sources, columns = len(so_far), log_probs.shape[1]
    width = columns // GROUPS
    if columns < _MANY_COLUMNS or count > width:
        return (log_probs + so_far.view(-1, 1)).view(sources, -1).topk(count)
    maxima = log_probs.view(-1, GROUPS, width).amax(1).add_(so_far.view(-1, 1))
    beam_and_column = maxima.view(sources, -1).topk(count, sorted=False).indices
    beam = beam_and_column // width
    first = beam_and_column + beam * (columns - width)
    places = first[:, :, None] + torch.arange(0, columns, width, device=first.device)
    sums = log_probs.view(sources, -1).gather(1, places.flatten(1)).view(places.shape)
    values, index = (sums + so_far.gather(1, beam)[:, :, None]).flatten(1).topk(count)
    return values, places.flatten(1).gather(1, index)
