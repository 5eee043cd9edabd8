"""Generate from many sources of all lengths: sorted into batches, given back by their indices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from ..data.batching import Share
from ..data.examples import pad
from ..data.tokenizer import Tokens
from ..errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["GREEDY", "BeamSearch", "generate_ids", "output_limit"]


@dataclass(frozen=True)
class BeamSearch:
    """How to search for an output.

    Sampling is off whatever the model's generation configuration says, so that a run can be repeated.

    Args:
        beams: hypotheses that are kept; 1 is greedy.
        length_penalty: a hypothesis of n tokens is ranked by log-probability / n^length_penalty.
        min_tokens: tokens before `</s>` may come.
        max_tokens: the most tokens, with `</s>`; `output_limit` holds too.
        no_repeat_ngram: no n-gram of this many tokens comes twice in an output; 0 allows all.
        split_long: divide a source that is too long for the model into sentences (see `long_text.divide`), search for
            an output of each, and join those.

    Raises:
        UserError: a value cannot be.
    """

    beams: int = 4
    length_penalty: float = 0.6
    min_tokens: int = 0
    max_tokens: int | None = None
    no_repeat_ngram: int = 0
    split_long: bool = False

    def __post_init__(self) -> None:
        for name in ("min_tokens", "no_repeat_ngram"):
            if getattr(self, name) < 0:
                raise UserError(f"got {name}={getattr(self, name)}; expected 0 or more")
        if self.max_tokens is not None and self.max_tokens <= self.min_tokens:
            raise UserError(f"got max_tokens={self.max_tokens}; expected more than {self.min_tokens}")
        if not math.isfinite(self.length_penalty):
            raise UserError(f"got length penalty {self.length_penalty}; expected a finite number")
        if self.beams < 1:
            raise UserError(f"got {self.beams} beams; expected 1 (greedy) or more")

    @property
    def label(self) -> str:
        """Part of the names of files."""
        bounds = {"min": self.min_tokens, "max": self.max_tokens, "ngram": self.no_repeat_ngram}
        marks = [f"beam{self.beams}", f"penalty{self.length_penalty:g}", *(f"{k}{v}" for k, v in bounds.items() if v)]
        return ".".join([*marks, "split"] if self.split_long else marks)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as results keep them."""
        return asdict(self)


GREEDY = BeamSearch(beams=1, length_penalty=1.0)


def output_limit(source_length: int, maximum: int) -> int:
    """The most tokens to generate for a source: twice its own and 32 more, within the model's `maximum`.

    A batch has the limit of its longest source.

    Without a bound in proportion to the source, a model that has not learned to stop costs every batch the maximum.
    """
    return min(2 * source_length + 32, maximum - 1)


@torch.inference_mode()
def generate_ids(
    model: PreTrainedModel, sources: Sequence[Tokens], search: BeamSearch = GREEDY, share: Share | None = None
) -> dict[int, list[int]]:
    """Generate from each source; the ids per index in `sources`, special tokens left out.

    Args:
        share: what this process does of it; the tokens of its batches are source tokens × beams.
    """
    config, was_training = model.config, model.training
    special = [config.pad_token_id, config.bos_token_id, config.eos_token_id]
    costs = np.array([len(source) * search.beams for source in sources])
    # The longest first: if memory does not suffice, it shows at once.
    order = np.argsort(-costs, kind="stable")
    options: dict[str, Any] = {"length_penalty": search.length_penalty} if search.beams > 1 else {}
    if search.no_repeat_ngram:
        options["no_repeat_ngram_size"] = search.no_repeat_ngram
    results: dict[int, list[int]] = {}
    model.eval()
    try:
        for batch in (share or Share()).batches(costs, order):
            ids = pad([sources[index] for index in batch], config.pad_token_id or 0)
            lengths = torch.tensor([len(sources[index]) for index in batch])
            mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
            limit = output_limit(ids.shape[1], config.max_position_embeddings)
            if search.max_tokens is not None:
                limit = min(limit, search.max_tokens)
            if search.min_tokens:
                options["min_new_tokens"] = min(search.min_tokens, limit)
            # `generate` is typed for any model and any output.
            output = cast(Any, model).generate(
                input_ids=ids.to(model.device),
                attention_mask=mask.to(model.device),
                max_new_tokens=limit,
                num_beams=search.beams,
                do_sample=False,
                **options,
            )
            for index, row in zip(batch, output.tolist(), strict=True):
                results[index] = [token for token in row if token not in special]
    finally:
        model.train(was_training)
    return results
