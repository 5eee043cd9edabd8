"""The decode loop: greedy search, sampling and beam search, with the results of transformers' `generate()`.

transformers prepares a call; then `decode` takes the fastest way that can compute it:

1. The searches of this module, over `Decoder.step`: for settings that `Settings` knows.
2. transformers' own searches over `Decoder.step`: for all other settings, processors and stopping criteria.
3. transformers' own searches over the model: for what a step cannot compute, as a cache that is given, or weights.

The bookkeeping is on the host: tokens are Python lists, read once per step.

Shape legend: B sources, M beams, N = B · M rows, P tokens of a prompt, V vocabulary.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin, LogitsProcessorList, StoppingCriteriaList
from transformers.generation.configuration_utils import GenerationMode
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import ModelOutput

from ..layout import check_mask
from ..models import SynthesizerPreTrainedModel
from .settings import Settings
from .step import Decoder, can_step

_ROW_MODES = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE)
_MODES = (*_ROW_MODES, GenerationMode.BEAM_SEARCH, GenerationMode.BEAM_SAMPLE)
# What else a step may be given. The mask of a decoder's prompt, for example, is read by the model only.
_INPUTS = {"attention_mask", "encoder_outputs", "past_key_values", "use_cache", "logits_to_keep"}
# Arguments that transformers does not hand to a custom loop.
_NOT_HANDED_ON = {"custom_generate", "synced_gpus", "assistant_model", "tokenizer", "assistant_tokenizer"}
# Finished sources are dropped when they are at least this part of all.
_FINISHED = 1 / 8
# With fewer columns of scores, one search over all of them is as fast.
_MANY_COLUMNS = 2048
# Columns of the scores that are one group in this search.
_GROUP = 32
# transformers' log probability of beams that do not count.
_IMPOSSIBLE = -1e9


def generate(model: Any, inputs: Any = None, generation_config: Any = None, *args: Any, **kwargs: Any) -> Any:
    """`model.generate()` with this package's decode loop: the same arguments, the same tokens.

    Args:
        model: any model of transformers; the loop is for `SynthesizerForConditionalGeneration` and
            `SynthesizerForCausalLM`, also with adapters or quantized layers inside.
        inputs, generation_config, args, kwargs: as in `model.generate()`, which runs for what the loop cannot compute.

    Returns:
        Tokens (B · num_return_sequences, length) with those of the prompts, as `model.generate()` does.

    Raises:
        ValueError: a mask that does not fit, and what `model.generate()` raises.
    """
    given = {name: value for name, value in kwargs.items() if value is not None}
    ids, mask = given.get("input_ids") if inputs is None else inputs, given.get("attention_mask")
    # transformers ignores the shape of a mask without zeros.
    is_ours, others = isinstance(model, SynthesizerPreTrainedModel), {"encoder_outputs", "inputs_embeds"}
    if is_ours and mask is not None and isinstance(ids, Tensor) and not given.keys() & {*others, "past_key_values"}:
        check_mask(mask, *ids.shape[:2])
    if args or not can_step(model) or given.keys() & {*_NOT_HANDED_ON, "past_key_values"}:
        return model.generate(inputs, generation_config, *args, **kwargs)
    merged = copy.copy(model.generation_config)
    for values in ({"top_k": 50}, vars(model.generation_config), vars(generation_config or merged), given):
        vars(merged).update({name: value for name, value in values.items() if value is not None})
    if merged.get_generation_mode() in _MODES:
        kwargs["custom_generate"] = partial(decode, streamer=kwargs.get("streamer"))
    return model.generate(inputs, generation_config, **kwargs)


def decode(
    model: Any,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    streamer: Any = None,
    **model_kwargs: Any,
) -> Any:
    """The search of a call, over this package's step, for `model.generate(…, custom_generate=decode)`.

    Args:
        input_ids: (B · M, P), the prompts, each repeated for its beams.
        logits_processor, stopping_criteria, generation_config, model_kwargs: as transformers prepares them.
        streamer: gets the tokens as they are generated.

    Raises:
        ValueError: a mode other than greedy search, sampling and beam search, a streamer with beams, or a mask that
            does not fit.
    """
    mode, beams = generation_config.get_generation_mode(), generation_config.num_beams
    if mode not in _MODES:
        raise ValueError(
            f"got settings of {mode.value}; expected those of greedy search, sampling or beam search. Call "
            "model.generate() without custom_generate"
        )
    if streamer is not None and beams > 1:
        raise ValueError("got a streamer with num_beams > 1; expected num_beams=1, as beams change their tokens")
    target, inputs = model, model_kwargs
    if _can_decode(model, generation_config, input_ids, model_kwargs):
        mask, encoded = model_kwargs.get("attention_mask"), model_kwargs.get("encoder_outputs")
        # One prompt, mask and source for all beams.
        given = (input_ids, mask, None if encoded is None else encoded[0])
        every: list[Any] = [None if x is None else x[::beams].contiguous().to(model.device) for x in given]
        prompts, make_decoder = every[0], partial(Decoder, model, *every, beams=beams)
        settings = Settings.read(generation_config, logits_processor, stopping_criteria, input_ids.shape[1])
        # transformers draws random numbers on the device of the tokens.
        if settings and streamer is None and input_ids.device == model.device:
            own_search = _search_beams if beams > 1 else _search_rows
            with torch.inference_mode():
                rows = own_search(make_decoder(max_length=generation_config.max_length), prompts.tolist(), settings)
            if rows is not None:
                length = max(map(len, rows))
                rows = [row + [settings.filler] * (length - len(row)) for row in rows]
                return torch.tensor(rows, device=input_ids.device)
        # Only the criteria say how long a sequence becomes.
        target = _Stepper(model, make_decoder(max_length=sys.maxsize))
        inputs = {"use_cache": True}
    search: Any = GenerationMixin._sample if mode in _ROW_MODES else GenerationMixin._beam_search
    return search(
        target,
        input_ids,
        logits_processor=logits_processor,
        stopping_criteria=stopping_criteria,
        generation_config=generation_config,
        **({} if beams > 1 else {"streamer": streamer}),
        **inputs,
    )


def _can_decode(model: Any, config: GenerationConfig, prompts: Tensor, inputs: Mapping[str, Any]) -> bool:
    """Whether steps of a `Decoder` compute what the calls of the model would, for prompts (N, P)."""
    if config.return_dict_in_generate or config.use_cache is not True or config.prefill_chunk_size is not None:
        return False
    if config.cache_implementation not in (None, "dynamic"):
        return False
    if any(value is not None and name not in _INPUTS for name, value in inputs.items()):
        return False
    if getattr(inputs.get("past_key_values"), "_is_user_defined", False):
        return False
    mask, encoded = inputs.get("attention_mask"), inputs.get("encoder_outputs")
    # transformers does not repeat a plain tuple for the beams, and raises an error.
    if encoded is not None and not (isinstance(encoded, ModelOutput | tuple) and len(encoded[0]) == len(prompts)):
        return False
    # Prompts may be padded on the left only.
    if (
        mask is not None
        and encoded is None
        and (mask.dim() != 2 or not mask[:, -1].all() or (mask[:, 1:] < mask[:, :-1]).any())
    ):
        return False
    return can_step(model, config.num_beams)


class _Stepper(GenerationMixin):
    """A model as transformers' searches see it, and its cache: a call is a step of a `Decoder`."""

    is_croppable = False

    def __init__(self, model: Any, decoder: Decoder) -> None:
        self._model, self._decoder = model, decoder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, input_ids: Tensor, return_dict: bool = True) -> CausalLMOutputWithPast:
        """The scores of the next token after prompts, or after one token more of each row."""
        scores = self._decoder.step(input_ids[:, -1].to(self._decoder.like.device))
        cache: Any = self
        return CausalLMOutputWithPast(logits=scores[:, None], past_key_values=cache)

    def _prefill(self, input_ids: Tensor, *args: Any, **kwargs: Any) -> CausalLMOutputWithPast:
        return self(input_ids)

    def prepare_inputs_for_generation(self, input_ids: Tensor, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {"input_ids": input_ids}

    def _valid_auto_compile_criteria(self, *args: Any) -> bool:
        return False

    def reorder_cache(self, rows: Tensor) -> None:
        """Row n becomes what row rows[n] was."""
        self._decoder.slots.reorder(rows)


def _search_rows(decoder: Decoder, prompts: list[list[int]], settings: Settings) -> list[list[int]]:
    """Greedy search or sampling: the tokens of each row.

    In sampling all rows go on to the end, so that the random numbers are those that transformers draws.
    """
    device, ends = decoder.like.device, set(settings.ends)
    rows = [list(prompt) for prompt in prompts]
    running, finished = list(rows), [False] * len(rows)
    while True:
        scores = decoder.step(torch.tensor([row[-1] for row in running], device=device))
        settings.process(scores, running)
        tokens = _choose(scores, settings.config.do_sample)
        for place, (row, token) in enumerate(zip(running, tokens, strict=True)):
            row.append(settings.filler if finished[place] else token)
            finished[place] |= token in ends
        if all(finished) or len(running[0]) >= settings.config.max_length:
            return rows
        if sum(finished) >= max(1, _FINISHED * len(finished)) and not settings.config.do_sample:
            places = [place for place, is_done in enumerate(finished) if not is_done]
            decoder.keep(torch.tensor(places, device=device))
            running, finished = [running[place] for place in places], [False] * len(places)


def _choose(scores: Tensor, at_random: bool) -> list[int]:
    """Tokens with the probabilities of scores (N, V), or the best ones, the first of equal ones."""
    if at_random:
        return cast("list[int]", torch.multinomial(torch.softmax(scores, -1), 1).squeeze(1).tolist())
    # On a CPU in a tenth of the time of PyTorch's.
    best: Any = scores.numpy().argmax(-1) if scores.device.type == "cpu" else scores.argmax(-1)
    return cast("list[int]", best.tolist())


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
        new_tokens, is_last = length - settings.prompt_length, length >= settings.config.max_length
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
            most = settings.config.max_length - settings.prompt_length if longest else new_tokens
            self.is_done |= stopping is True or self.scores[0] / most**penalty <= self.finished[-1][0]


def _search_beams(decoder: Decoder, prompts: list[list[int]], settings: Settings) -> list[list[int]] | None:
    """Beam search: the tokens of the best `num_return_sequences` of each source.

    None if a source has too few possible continuations: then transformers' search decides.
    """
    beams, device = settings.config.num_beams, decoder.like.device
    start = [0.0] + [_IMPOSSIBLE] * (beams - 1)
    searches = [Beams([list(prompt)] * beams, start, list(range(beams))) for prompt in prompts]
    running, count = list(searches), max(2, 1 + len(settings.ends)) * beams
    buffer: Tensor | None = None
    while True:
        rows = [row for search in running for row in search.rows]
        scores = decoder.step(torch.tensor([row[-1] for row in rows], device=device))
        # Large results in fresh memory cost as much as the product.
        buffer = torch.empty_like(scores) if buffer is None else buffer[: len(scores)]
        log_probs = torch.log_softmax(scores, -1, out=buffer)
        settings.process(log_probs, rows)
        so_far = torch.tensor([search.scores for search in running], dtype=torch.float32, device=device)
        values, places = _best_candidates(log_probs, so_far, count)
        columns = scores.shape[1]
        for search, own, where in zip(running, values.tolist(), places.tolist(), strict=True):
            # Neither −inf nor NaN.
            if not _IMPOSSIBLE < own[-1] <= own[0]:
                return None
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
            decoder.slots.reorder(torch.tensor(parents, device=device))
    return [row for search in searches for _, row in search.finished[: settings.config.num_return_sequences]]


def _best_candidates(log_probs: Tensor, so_far: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The best continuations of each source, best first: (B, count) sums, and their places beam · columns + token.

    `log_probs` (B · M, columns) are those of the next token, `so_far` (B, M) those of the tokens so far. The search is
    among the columns of a grid first: the best ones are in the best columns.
    """
    sources, columns = len(so_far), log_probs.shape[1]
    width = -(-columns // _GROUP)
    if columns < _MANY_COLUMNS or count > width:
        return (log_probs + so_far.view(-1, 1)).view(sources, -1).topk(count)
    # The last row of the grid may be shorter than the others.
    last = (_GROUP - 1) * width
    maxima = log_probs[:, :last].view(-1, _GROUP - 1, width).amax(1)
    shorter = maxima[:, : columns - last]
    torch.maximum(shorter, log_probs[:, last:], out=shorter)
    best = maxima.add_(so_far.view(-1, 1)).view(sources, -1).topk(count, sorted=False).indices
    beam = best // width
    tokens = (best % width)[:, :, None] + torch.arange(0, _GROUP * width, width, device=best.device)
    outside = tokens >= columns
    places = (beam[:, :, None] * columns + tokens).masked_fill_(outside, 0)
    sums = log_probs.view(sources, -1).gather(1, places.flatten(1)).view(places.shape)
    sums = (sums + so_far.gather(1, beam)[:, :, None]).masked_fill_(outside, -torch.inf)
    values, index = sums.flatten(1).topk(count)
    return values, places.flatten(1).gather(1, index)
