"""The settings that the searches of `loop.py` know, read from the configurations and arguments of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    NoRepeatNGramLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.configuration_utils import GenerationMode

# By their names in `GenerationConfig`, with transformers' defaults.
_COUNTS = {
    "max_length": None,
    "max_new_tokens": None,
    "min_length": 0,
    "min_new_tokens": None,
    "num_beams": 1,
    "num_return_sequences": 1,
    "no_repeat_ngram_size": 0,
}
_TOKENS = {
    "bos_token_id": None,
    "decoder_start_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "suppress_tokens": None,
}
_SAMPLING = {"temperature": 1.0, "top_k": 50, "top_p": 1.0}
_BEAMS = {"length_penalty": 1.0, "early_stopping": False}
_SEARCH = {**_COUNTS, **_SAMPLING, **_BEAMS, "do_sample": False}
DEFAULTS: dict[str, Any] = {**_SEARCH, **_TOKENS, "use_cache": True}
# Other settings, with values that change nothing.
_NEUTRAL = {
    **dict.fromkeys(("output_attentions", "output_hidden_states", "output_scores", "return_dict_in_generate"), False),
    **dict.fromkeys(("repetition_penalty", "typical_p"), 1.0),
}
# With a larger penalty, powers of lengths leave the range of float32.
_LARGEST_PENALTY = 10.0


def read_mode(model: Any, config: GenerationConfig | None, given: Mapping[str, Any]) -> GenerationMode:
    """The mode of a call of `generate` with a configuration and other arguments."""
    merged = GenerationConfig(top_k=_SAMPLING["top_k"])
    for values in (vars(model.generation_config), {} if config is None else vars(config), given):
        vars(merged).update({name: value for name, value in values.items() if value is not None})
    return merged.get_generation_mode()


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a search.

    Attributes:
        prompt_length, max_length: tokens before the first new one, and of the longest sequence.
        min_length: no sequence ends before it has so many tokens, the prompt included.
        num_beams, num_return_sequences, length_penalty, early_stopping, do_sample: as in `GenerationConfig`.
        start: the first token of a decoder with an encoder, 0 in other models.
        ends: the tokens that end a sequence.
        pad, filler: the padding token, and the token after the end of a sequence.
        suppressed: tokens that are never generated.
        ngrams: the blocking of n-grams, which reads the tokens; None without.
        warpers: what else changes the scores, in order.
    """

    prompt_length: int
    max_length: int
    min_length: int
    num_beams: int
    num_return_sequences: int
    length_penalty: float
    early_stopping: bool | str
    do_sample: bool
    start: int
    ends: list[int]
    pad: int | None
    filler: int
    suppressed: list[int]
    ngrams: NoRepeatNGramLogitsProcessor | None
    warpers: list[Any]

    @classmethod
    def read(
        cls, model: Any, prompt_length: int, config: GenerationConfig | None, given: Mapping[str, Any]
    ) -> Settings | None:
        """The settings of a call of `generate` with a configuration and other arguments.

        None for settings that are not in `DEFAULTS`, and for values that transformers refuses, or computes
        in another way than the searches.
        """
        values = _merge(model, config, given)
        if values is None or not _has_plain_types(values):
            return None
        v = SimpleNamespace(**values)
        ends, suppressed, size = _ends(v.eos_token_id), v.suppress_tokens or [], v.no_repeat_ngram_size or 0
        beams, results, is_sampling = v.num_beams, v.num_return_sequences, v.do_sample is True
        # transformers warns of two settings for one length; with none it takes a default, and warns.
        if (v.max_new_tokens is None) == (v.max_length is None) or (v.min_length and v.min_new_tokens is not None):
            return None
        longest = prompt_length + v.max_new_tokens if v.max_length is None else v.max_length
        least = v.min_length or 0 if v.min_new_tokens is None else prompt_length + v.min_new_tokens
        start = v.bos_token_id if v.decoder_start_token_id is None else v.decoder_start_token_id
        start = start if model.config.is_encoder_decoder else 0
        is_known = (
            type(start) is int,
            v.use_cache is True and prompt_length < longest >= least,
            beams == 1 if is_sampling else results <= beams,
            min(ends, default=0) >= 0 and abs(v.length_penalty) <= _LARGEST_PENALTY,
            type(v.early_stopping) is bool or v.early_stopping == "never",
            v.do_sample is None or type(v.do_sample) is bool,
        )
        if not all(is_known):
            return None
        pad = ends[0] if v.pad_token_id is None and ends else v.pad_token_id
        # transformers' beam search fills with the end token where the padding token is 0.
        of_beams = (pad or ends[0]) if ends else -1
        return cls(
            prompt_length=prompt_length,
            max_length=longest,
            min_length=least,
            num_beams=beams,
            num_return_sequences=results,
            length_penalty=v.length_penalty,
            early_stopping=v.early_stopping,
            do_sample=is_sampling,
            start=start,
            ends=ends,
            pad=v.pad_token_id,
            filler=of_beams if beams > 1 else pad or 0,
            suppressed=suppressed,
            ngrams=NoRepeatNGramLogitsProcessor(size) if size > 0 else None,
            warpers=_warpers(v) if is_sampling else [],
        )

    def process(self, scores: Tensor, width: int, rows: Sequence[list[int]]) -> None:
        """Change scores (N, columns), of which `width` are of tokens, in place, after these rows of tokens."""
        banned = self.suppressed + (self.ends if len(rows[0]) < self.min_length else [])
        if banned := [token for token in banned if 0 <= token < width]:
            scores[:, banned] = -torch.inf
        processed = scores[:, :width]
        if self.ngrams is not None:
            processed = self.ngrams(torch.tensor(rows, device=scores.device), processed)
        for warper in self.warpers:
            processed = warper(None, processed)
        if self.ngrams is not None or self.warpers:
            scores[:, :width] = processed


def _merge(model: Any, config: GenerationConfig | None, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """The values of `DEFAULTS`; None if there is another setting or argument.

    As in transformers, the arguments are before the call's configuration, and that before the model's.
    """
    values, own = dict(DEFAULTS), {} if config is None else vars(config)
    for source in (vars(model.generation_config), own):
        found = {name: value for name, value in source.items() if value is not None and not name.startswith("_")}
        unknown = found.keys() - DEFAULTS.keys() - {"transformers_version"}
        if any(name not in _NEUTRAL or found[name] != _NEUTRAL[name] for name in unknown):
            return None
        values |= {name: found[name] for name in found.keys() & DEFAULTS.keys()}
    # transformers refuses settings in the model's configuration.
    if not DEFAULTS.keys() >= given.keys() or _SEARCH.keys() & vars(model.config).keys():
        return None
    values |= given
    # transformers warns of settings of another mode, if the call has them.
    others = (*(() if values["do_sample"] else _SAMPLING), *(_BEAMS if values["num_beams"] == 1 else ()))
    if any(part.get(name) not in (None, DEFAULTS[name]) for name in others for part in (own, given)):
        return None
    return values


def _has_plain_types(values: Mapping[str, Any]) -> bool:
    """Whether counts and tokens are whole numbers or lists of them, and the rest numbers."""
    ends, suppressed = values["eos_token_id"], values["suppress_tokens"]
    if ends == [] or not isinstance(suppressed, list | None):
        return False
    needed = [values[name] for name in ("num_beams", "num_return_sequences")]
    whole = [values[name] for name in (*_COUNTS, "top_k", "pad_token_id") if values[name] is not None]
    numbers = [values[name] for name in ("temperature", "top_p", "length_penalty")]
    return (
        all(type(x) is int for x in (*needed, *whole, *_ends(ends), *(suppressed or [])))
        and all(type(x) in (int, float) for x in numbers)
        and min(needed) > 0
    )


def _ends(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]


def _warpers(v: SimpleNamespace) -> list[Any]:
    """As transformers makes them for sampling, in its order."""
    warpers: list[Any] = [] if v.temperature == 1 else [TemperatureLogitsWarper(v.temperature)]
    warpers += [TopKLogitsWarper(v.top_k)] if v.top_k else []
    return warpers + ([TopPLogitsWarper(v.top_p)] if v.top_p < 1 else [])
