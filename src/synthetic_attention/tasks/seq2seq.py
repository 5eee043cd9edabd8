"""The base class of tasks from text to text: pairs of texts, a model that generates, scores of its outputs."""

from __future__ import annotations

import copy
import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from torch import Tensor

from ..data.examples import Examples, OnLong, Pair, Pairs, fit_length, pair_collate
from ..data.lines import fingerprint
from ..data.long_inputs import separator, split_lines
from ..data.tokenizer import decode, encode, train_tokenizer
from ..errors import UserError
from .base import Evaluation, EvaluationLoop, Scores, Task, check_on_long, on_long_advice
from .generation import generate_tokens, make_generation_config

if TYPE_CHECKING:
    from transformers import GenerationConfig
    from transformers import PreTrainedTokenizerFast as Tokenizer


@dataclass(frozen=True)
class TextPairs:
    """A split as text: `targets[i]` is the expected output for `sources[i]`.

    Args:
        ids: the ids of the examples in result files, if they have some.
        references: what outputs are scored against, one entry per row; by default the targets.
        sides: the names of sources and targets in messages; by default with the name of the split.
        skipped: malformed lines that were left out.
    """

    name: str
    sources: list[str]
    targets: list[str]
    _: KW_ONLY
    ids: Sequence[str] = ()
    references: Sequence[Any] = ()
    sides: tuple[str, str] = ("", "")
    skipped: int = 0

    def __post_init__(self) -> None:
        if not any(self.sides):
            object.__setattr__(self, "sides", (f"{self.name} sources", f"{self.name} targets"))

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def has_labels(self) -> bool:
        """Whether it has targets."""
        return bool(self.complete())

    def complete(self) -> list[int]:
        """The rows without a blank side: only these are trained on, validated on and scored."""
        pairs = zip(self.sources, self.targets, strict=True)
        return [row for row, (source, target) in enumerate(pairs) if source.strip() and target.strip()]

    def references_of(self, rows: Sequence[int]) -> list[Any]:
        """The references of `rows`."""
        return [(self.references or self.targets)[row] for row in rows]

    def fingerprint(self) -> dict[str, str | int]:
        """Digests that tell whether two runs read the same text."""
        digests: dict[str, str | int] = {
            "split": self.name,
            "pairs": len(self.sources),
            "source_sha256": fingerprint(self.sources),
            "target_sha256": fingerprint(self.targets),
        }
        if self.ids:
            digests["references_sha256"] = fingerprint(["\0".join(several) for several in self.references])
        return digests


S = TypeVar("S", bound=TextPairs)


@dataclass(frozen=True)
class SequenceToSequence(Task[S, Pair], Generic[S]):
    """A task from text to text. A subclass reads files and scores outputs.

    A validation generates greedily; `synthesizer evaluate` uses beam search.
    """

    model_class: ClassVar[str | type] = "SynthesizerForConditionalGeneration"
    greater_is_better: ClassVar[bool] = True
    predict_with_generate: ClassVar[bool] = True
    unit: ClassVar[str] = "pairs"
    tokens_name: ClassVar[str] = "source + target tokens"

    @property
    def languages(self) -> tuple[str, str]:
        """The language codes of sources and targets ("de"), "" if unknown."""
        return "", ""

    @abstractmethod
    def score(self, outputs: Sequence[str], references: Sequence[Any], loop: EvaluationLoop | None = None) -> Scores:
        """Scores of outputs against their references.

        Args:
            loop: only in an evaluation: scores that are slow or need the model are computed as well.
        """

    def predictions(self, split: S, outputs: Sequence[str]) -> tuple[str, str]:
        """The content and the suffix of the predictions file."""
        return "".join(f"{text}\n" for text in outputs), "txt"

    def shorten(self, split: S, tokenizer: Tokenizer, max_length: int) -> tuple[list[str], int]:
        """The sources before truncation, and how many were shortened.

        A task that knows which part of a source matters least shortens it here; otherwise sources lose their end.
        """
        return split.sources, 0

    def shorten_lines(self, lines: Sequence[str], tokenizer: Tokenizer, max_length: int) -> tuple[Sequence[str], int]:
        """The same for lines in the form that the model reads."""
        return lines, 0

    def longest_output(self, split: S, tokenizer: Tokenizer) -> int | None:
        """The limit of new tokens if the settings have none; None leaves it to the length of the sources."""
        return None

    def train_tokenizer(self, split: S, vocab_size: int, max_length: int) -> Tokenizer:
        """One vocabulary for both sides."""
        return train_tokenizer(split.sources + split.targets, vocab_size, max_length)

    def encode(
        self, split: S, tokenizer: Tokenizer, max_length: int, on_long: OnLong = "error", training: bool = False
    ) -> Pairs:
        """The pairs without a blank side, as ids."""
        shortened = 0
        if on_long == "truncate":
            lines, shortened = self.shorten(split, tokenizer, max_length)
            split = replace(split, sources=lines)
        sources, targets = encode(tokenizer, split.sources), encode(tokenizer, split.targets)
        columns = dict(zip(split.sides, (sources, targets), strict=True))
        advice = "pass --on-long drop to leave such pairs out, or --truncate to cut them"
        kept, over = fit_length(columns, max_length, on_long, advice)
        rows = sorted({*kept} & {*split.complete()})
        if not rows:
            raise UserError(f"{' | '.join(split.sides)}: no pair of texts is left of {len(sources)}")
        return Pairs(
            [sources[row] for row in rows],
            [targets[row] for row in rows],
            rows,
            dropped=len(sources) - len(rows),
            truncated=max(over, shortened) if on_long == "truncate" else 0,
            skipped=split.skipped,
        )

    def collate(self, examples: Sequence[Pair], pad_token_id: int) -> dict[str, Tensor]:
        """input_ids and attention_mask (B, S), labels (B, T) padded with −100."""
        return pair_collate(examples, pad_token_id)

    def generation_config(self, options: Mapping[str, Any]) -> GenerationConfig:
        """Beam search, updated by `options`."""
        return make_generation_config(options)

    def _limited(self, generation: GenerationConfig, split: S, tokenizer: Tokenizer) -> GenerationConfig:
        limit = self.longest_output(split, tokenizer) if generation.max_new_tokens is None else None
        if limit is None:
            return generation
        generation = copy.deepcopy(generation)
        generation.max_new_tokens = max(limit, (generation.min_new_tokens or 0) + 1)
        return generation

    def validate(self, loop: EvaluationLoop, split: S, examples: Examples[Pair], loss: float) -> Scores:
        """Scores of greedy outputs."""
        assert isinstance(examples, Pairs)
        greedy = self._limited(self.generation_config({"num_beams": 1}), split, loop.tokenizer)
        outputs = decode(loop.tokenizer, generate_tokens(loop, examples.sources, greedy))
        return self.score(outputs, split.references_of(examples.rows))

    def evaluate(
        self, loop: EvaluationLoop, split: S, generation: GenerationConfig | None = None, on_long: OnLong = "error"
    ) -> Evaluation:
        """Generate from every source. Pairs with a blank side are not scored, as in a validation."""
        shortened = 0
        if on_long == "truncate":
            lines, shortened = self.shorten(split, loop.tokenizer, loop.max_length)
            split = replace(split, sources=lines)
        generation = self._limited(generation or self.generation_config({}), split, loop.tokenizer)
        outputs, over = self.generate(loop, split.sources, generation, on_long, split.sides[0])
        rows = split.complete()
        content, suffix = self.predictions(split, outputs)
        return Evaluation(
            self.score([outputs[row] for row in rows], split.references_of(rows), loop),
            examples=len(rows),
            predictions=content,
            suffix=suffix,
            answered=len(outputs),
            truncated=0 if on_long == "split" else max(over, shortened),
            divided=over if on_long == "split" else 0,
            skipped=split.skipped,
        )

    def generate(
        self,
        loop: EvaluationLoop,
        lines: Sequence[str],
        generation: GenerationConfig | None = None,
        on_long: OnLong = "error",
        where: str = "input",
        first_line: int = 1,
    ) -> tuple[list[str], int]:
        """One output per line, blank for a blank line; and the number of lines that were truncated or split."""
        check_on_long(self, on_long)
        generation = generation or self.generation_config({})
        if on_long == "split":
            parts = split_lines(lines, loop.tokenizer, loop.max_length, self.languages[0])
            outputs, _ = self.generate(loop, parts.parts, generation, where=where, first_line=first_line)
            return parts.join(outputs, separator(self.languages[1])), parts.split
        shortened = 0
        if on_long == "truncate":
            lines, shortened = self.shorten_lines(lines, loop.tokenizer, loop.max_length)
        sources = encode(loop.tokenizer, lines)
        _, over = fit_length({where: sources}, loop.max_length, on_long, f"pass {on_long_advice(self)}", first_line)
        rows = [row for row, line in enumerate(lines) if line.strip()]
        texts = decode(loop.tokenizer, generate_tokens(loop, [sources[row] for row in rows], generation))
        results = [""] * len(lines)
        for row, text in zip(rows, texts, strict=True):
            results[row] = text
        return results, max(over, shortened)


def json_lines(rows: Iterable[Mapping[str, Any]]) -> str:
    """The content of a predictions file."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
