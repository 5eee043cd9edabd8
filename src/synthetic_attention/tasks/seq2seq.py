"""The base class of tasks from text to text: pairs of texts, a model that generates, scores of its outputs."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from ..data.examples import Examples, OnLong, Pair, Pairs, fit_length
from ..data.files import fingerprint
from ..data.long_inputs import separator, split_lines
from ..data.tokenizer import decode, encode, train_tokenizer
from ..errors import UserError
from ..metrics.text import rouge_per_example
from .base import Evaluation, EvaluationLoop, Scores, Task, on_long_advice
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
        sides: the names of sources and targets in messages, after the name of the split.
        skipped: malformed lines that were left out.
    """

    name: str
    sources: list[str]
    targets: list[str]
    _: KW_ONLY
    ids: Sequence[str] = ()
    references: Sequence[Any] = ()
    sides: tuple[str, str] = (" sources", " targets")
    skipped: int = 0

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
        """The content and the suffix of the predictions file: JSON lines with each ROUGE; gold are the references."""
        rows = zip(split.ids, split.sources, split.references, outputs, strict=True)
        lines = [dict(zip(("id", "source", "gold", "predicted"), row, strict=True)) for row in rows]
        scores = rouge_per_example(outputs, split.references)
        return json_lines(line | score for line, score in zip(lines, scores, strict=True)), "jsonl"

    def shorten(
        self, lines: Sequence[str], tokenizer: Tokenizer, max_length: int, split: S | None = None
    ) -> tuple[list[str], int]:
        """Sources before truncation, and how many were shortened; `split` if they are its sources.

        A task that knows which part of a source matters least shortens it here; otherwise sources lose their end.
        """
        return [*lines], 0

    def limit_output(self, generation: GenerationConfig, split: S, tokenizer: Tokenizer) -> GenerationConfig:
        """The settings for a split; without a limit of new tokens, it follows from the length of a source."""
        return generation

    def train_tokenizer(self, split: S, vocab_size: int, max_length: int) -> Tokenizer:
        """One vocabulary for both sides."""
        return train_tokenizer(split.sources + split.targets, vocab_size, max_length)

    def encode(
        self, split: S, tokenizer: Tokenizer, max_length: int, on_long: OnLong = "error", training: bool = False
    ) -> Pairs:
        """The pairs without a blank side, as ids."""
        split, shortened = self._shortened(split, tokenizer, max_length, on_long)
        sources, targets = encode(tokenizer, split.sources), encode(tokenizer, split.targets)
        columns = {f"{split.name}{side}": ids for side, ids in zip(split.sides, (sources, targets), strict=True)}
        advice = "pass --on-long drop to leave such pairs out, or --truncate to cut them"
        kept, over = fit_length(columns, max_length, on_long, advice)
        rows = sorted({*kept} & {*split.complete()})
        if not rows:
            raise UserError(f"{' | '.join(columns)}: no pair of texts is left of {len(sources)}")
        return Pairs(
            [sources[row] for row in rows],
            [targets[row] for row in rows],
            rows,
            dropped=len(sources) - len(rows),
            truncated=max(over, shortened) if on_long == "truncate" else 0,
            skipped=split.skipped,
        )

    def generation_config(self, options: Mapping[str, Any]) -> GenerationConfig:
        """Beam search, updated by `options`."""
        return make_generation_config(options)

    def _shortened(self, split: S, tokenizer: Tokenizer, max_length: int, on_long: OnLong) -> tuple[S, int]:
        if on_long != "truncate":
            return split, 0
        lines, count = self.shorten(split.sources, tokenizer, max_length, split)
        return replace(split, sources=lines), count

    def validate(self, loop: EvaluationLoop, split: S, examples: Examples[Pair], loss: float) -> Scores:
        """Scores of greedy outputs."""
        assert isinstance(examples, Pairs)
        greedy = self.limit_output(self.generation_config({"num_beams": 1}), split, loop.tokenizer)
        outputs = decode(loop.tokenizer, generate_tokens(loop, examples.sources, greedy))
        return self.score(outputs, split.references_of(examples.rows))

    def evaluate(self, loop: EvaluationLoop, split: S) -> Evaluation:
        """Generate from every source. Pairs with a blank side are not scored, as in a validation."""
        split, shortened = self._shortened(split, loop.tokenizer, loop.max_length, loop.on_long)
        generation = self.limit_output(loop.generation or self.generation_config({}), split, loop.tokenizer)
        inputs = f"{split.name}{split.sides[0]}"
        outputs, over = self.generate(replace(loop, generation=generation, inputs=inputs), split.sources)
        rows, is_split = split.complete(), loop.on_long == "split"
        content, suffix = self.predictions(split, outputs)
        return Evaluation(
            self.score([outputs[row] for row in rows], split.references_of(rows), loop),
            examples=len(rows),
            predictions=content,
            suffix=suffix,
            truncated=0 if is_split else max(over, shortened),
            divided=over if is_split else 0,
            skipped=split.skipped,
        )

    def generate(self, loop: EvaluationLoop, lines: Sequence[str], first_line: int = 1) -> tuple[list[str], int]:
        """One output per line, blank for a blank line; and the number of lines that were truncated or split."""
        if loop.on_long == "split":
            parts = split_lines(lines, loop.tokenizer, loop.max_length, self.languages[0])
            texts, _ = self.generate(replace(loop, on_long="error"), [*chain(*parts)], first_line)
            remaining, between = iter(texts), separator(self.languages[1])
            outputs = [between.join(filter(None, islice(remaining, len(line)))) for line in parts]
            return outputs, sum(len(line) > 1 for line in parts)
        shortened = 0
        if loop.on_long == "truncate":
            lines, shortened = self.shorten(lines, loop.tokenizer, loop.max_length)
        sources = encode(loop.tokenizer, lines)
        advice = f"pass {on_long_advice(self)}"
        _, over = fit_length({loop.inputs: sources}, loop.max_length, loop.on_long, advice, first_line)
        rows = [row for row, line in enumerate(lines) if line.strip()]
        generation = loop.generation or self.generation_config({})
        texts = decode(loop.tokenizer, generate_tokens(loop, [sources[row] for row in rows], generation))
        results = dict(zip(rows, texts, strict=True))
        return [results.get(row, "") for row in range(len(lines))], max(over, shortened)


def json_lines(rows: Iterable[Mapping[str, Any]]) -> str:
    """The content of a predictions file."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
