"""The base class of tasks from text to text: pairs of texts, a model that generates, scores of its outputs."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar

from transformers import GenerationConfig

from synthetic_attention.models import SynthesizerForConditionalGeneration

from ..data.examples import Examples, NoExamplesError, OnLong, find_long, truncated
from ..data.source import Split
from ..data.tokenizer import Tokenizer, Tokens, decode, encode
from .base import Evaluation, EvaluationLoop, Scores, Task
from .generation import generate_tokens, make_generation_config

# The id, the source, and one or several references.
PairRecord = tuple[str, str, tuple[str, ...]]


@dataclass(frozen=True, eq=False)
class TextPairs(Split):
    """A split as text: `targets[i]` is the expected output for `sources[i]`.

    Args:
        references: what outputs are scored against, one entry per row; by default the targets.
        sides: the names of sources and targets in messages, after the name of the split.
    """

    sources: list[str]
    targets: list[str]
    _: KW_ONLY
    ids: Sequence[str] = ()
    references: Sequence[Any] = ()
    sides: tuple[str, str] = (" sources", " targets")
    counted: ClassVar[str] = "pairs"

    @classmethod
    def of(cls, name: str, rows: Sequence[PairRecord], **options: Any) -> TextPairs:
        """From the records of a reader; the target is the first reference, on one line."""
        targets = [" ".join(references[0].split()) for _, _, references in rows]
        ids, references = [row[0] for row in rows], [row[2] for row in rows]
        return cls(name, [row[1] for row in rows], targets, ids=ids, references=references, **options)

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def has_labels(self) -> bool:
        """Whether it has targets."""
        return bool(self.complete())

    def all_texts(self) -> list[str]:
        """Sources and targets: both sides have one vocabulary."""
        return self.sources + self.targets

    def complete(self) -> list[int]:
        """The rows without a blank side: only these are trained on, validated on and scored."""
        pairs = zip(self.sources, self.targets, strict=True)
        return [row for row, (source, target) in enumerate(pairs) if source.strip() and target.strip()]

    def references_of(self, rows: Sequence[int]) -> list[Any]:
        """The references of `rows`."""
        return [(self.references or self.targets)[row] for row in rows]

    def columns(self) -> dict[str, Iterable[str]]:
        """The lines whose digests identify the text."""
        sides: dict[str, Iterable[str]] = {"source_sha256": self.sources, "target_sha256": self.targets}
        if self.ids:
            sides["references_sha256"] = map("\0".join, self.references)
        return sides


@dataclass(frozen=True)
class SequenceToSequence(Task):
    """A task from text to text. A validation generates greedily, an evaluation by default with beam search."""

    model_class: ClassVar[type] = SynthesizerForConditionalGeneration
    unit: ClassVar[str] = "pairs"

    @abstractmethod
    def score(self, outputs: Sequence[str], references: Sequence[Any], loop: EvaluationLoop | None = None) -> Scores:
        """Scores of outputs against their references; with `loop` also those that are slow or need the model."""

    def predictions(self, split: TextPairs, outputs: Sequence[str]) -> tuple[str, str]:
        """The content and the suffix of the predictions file: JSON lines; gold are the references."""
        rows = zip(split.ids, split.sources, split.references, outputs, strict=True)
        return json_lines(dict(zip(("id", "source", "gold", "predicted"), row, strict=True)) for row in rows), "jsonl"

    def shorten(self, source: str, reference: Any, tokenizer: Tokenizer, max_length: int) -> str:
        """A source that is too long, without what matters least; `reference` is its entry in the split, or None."""
        return source

    def limit_output(self, generation: GenerationConfig, split: TextPairs, tokenizer: Tokenizer) -> GenerationConfig:
        """The settings for a split; without a limit of new tokens, it follows from the length of a source."""
        return generation

    def encode(
        self, split: TextPairs, tokenizer: Tokenizer, max_length: int, on_long: OnLong = "error", training: bool = False
    ) -> Examples:
        """The pairs without a blank side, as ids."""
        sources, shortened = self._encode_sources(split.sources, split.references, tokenizer, max_length, on_long)
        targets = encode(tokenizer, split.targets)
        sides = zip(split.sides, (sources, targets), strict=True)
        columns = {f"{split.name}{side}": [*map(len, rows)] for side, rows in sides}
        # Of translations the sides are endings of files.
        unit = "lines" if split.sides[0].startswith(".") else "examples"
        over = find_long(columns, max_length, on_long, split.first, unit)
        rows = [row for row in split.complete() if on_long == "truncate" or not over[row]]
        if not rows:
            raise NoExamplesError(f"{' | '.join(columns)}: no pair of texts is left of {len(sources)}")
        return Examples.of(
            [(truncated(sources[row], max_length), truncated(targets[row], max_length)) for row in rows],
            rows=rows,
            dropped=len(sources) - len(rows),
            truncated=max(int(over.sum()), shortened) if on_long == "truncate" else 0,
            skipped=split.skipped,
        )

    def generation_config(self, options: Mapping[str, Any]) -> GenerationConfig:
        """Beam search, updated by `options`."""
        return make_generation_config(options)

    def _encode_sources(
        self, texts: Sequence[str], references: Sequence[Any], tokenizer: Tokenizer, max_length: int, on_long: OnLong
    ) -> tuple[list[Tokens], int]:
        """The ids of sources; before a truncation they are shortened. Returns the number of these as well."""
        sources, count = encode(tokenizer, texts), 0
        if on_long == "truncate":
            for row, ids in enumerate(sources):
                if len(ids) > max_length:
                    text = self.shorten(texts[row], references[row] if references else None, tokenizer, max_length)
                    (sources[row],) = encode(tokenizer, [text])
                    count += 1
        return sources, count

    def validate(self, loop: EvaluationLoop, split: TextPairs, examples: Examples, loss: float) -> Scores:
        """Scores of greedy outputs."""
        greedy = self.limit_output(self.generation_config({"num_beams": 1}), split, loop.tokenizer)
        outputs = decode(loop.tokenizer, generate_tokens(loop, [source for source, _ in examples.items()], greedy))
        return self.score(outputs, split.references_of(examples.rows))

    def evaluate(self, loop: EvaluationLoop, split: TextPairs) -> Evaluation:
        """Generate from every source. Pairs with a blank side are not scored, as in a validation."""
        generation = self.limit_output(loop.generation or self.generation_config({}), split, loop.tokenizer)
        loop = replace(loop, generation=generation, inputs=f"{split.name}{split.sides[0]}")
        outputs, truncated = self.generate(loop, split.sources, references=split.references)
        rows = split.complete()
        scores = self.score([outputs[row] for row in rows], split.references_of(rows), loop) if rows else {}
        predictions = self.predictions(split, outputs)
        return Evaluation(scores, len(rows), *predictions, truncated=truncated, skipped=split.skipped)

    def generate(
        self, loop: EvaluationLoop, lines: Sequence[str], first_line: int = 1, references: Sequence[Any] = ()
    ) -> tuple[list[str], int]:
        """One output per line, blank for a blank line; and the number of truncated lines."""
        sources, cut = self._encode_sources(lines, references, loop.tokenizer, loop.max_length, loop.on_long)
        find_long({loop.inputs: [*map(len, sources)]}, loop.max_length, loop.on_long, first=first_line)
        filled = [truncated(ids, loop.max_length) for ids, line in zip(sources, lines, strict=True) if line.strip()]
        tokens = generate_tokens(loop, filled, loop.generation or self.generation_config({}))
        texts = iter(decode(loop.tokenizer, tokens))
        return [next(texts) if line.strip() else "" for line in lines], cut


def json_lines(rows: Iterable[Mapping[str, Any]]) -> str:
    """The content of a predictions file."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
