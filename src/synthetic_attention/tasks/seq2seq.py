"""What all tasks from text to text share: pairs of texts, a model that generates, scores of what it wrote."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from ..data.batching import Share
from ..data.examples import IGNORED, Examples, Long, Pair, Pairs, fit_length, pair_collate
from ..data.long_text import divide, separator
from ..data.text import fingerprint
from ..data.tokenizer import decode, encode, train_tokenizer
from ..errors import UserError
from .base import Task
from .generation import GREEDY, BeamSearch, generate_ids
from .types import Evaluation, Scores

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from ..models import SynthesizerConfig

__all__ = ["SequenceToSequence", "TextPairs"]


@dataclass(frozen=True)
class TextPairs:
    """A split as text: entry i of `targets` is what should come of entry i of `sources`.

    `skipped` lines of its files were malformed, and are not among them.
    """

    name: str
    sources: list[str]
    targets: list[str]
    _: KW_ONLY
    skipped: int = 0

    def __len__(self) -> int:
        return len(self.sources)

    def complete(self) -> list[int]:
        """The rows of which neither side is blank: others are not trained on, validated on or scored."""
        pairs = zip(self.sources, self.targets, strict=True)
        return [row for row, (source, target) in enumerate(pairs) if source.strip() and target.strip()]

    def fingerprint(self) -> dict[str, str | int]:
        """What tells whether two runs read the same text."""
        return {
            "split": self.name,
            "pairs": len(self.sources),
            "source_sha256": fingerprint(self.sources),
            "target_sha256": fingerprint(self.targets),
        }


@dataclass(frozen=True)
class SequenceToSequence(Task[TextPairs, Pair]):
    """A task from text to text: a subclass says how files are read and how what the model writes is scored.

    Validation is greedy; `synthesizer evaluate` searches with beams.
    """

    model_class: ClassVar[str] = "SynthesizerForConditionalGeneration"
    larger_is_better: ClassVar[bool] = True
    unit: ClassVar[str] = "pairs"
    tokens_name: ClassVar[str] = "source + target tokens"

    @property
    def languages(self) -> tuple[str, str]:
        """Codes of the languages of sources and targets ("de"); "" where they are not known."""
        return "", ""

    @abstractmethod
    def score(self, predictions: Sequence[str], references: Sequence[Any]) -> Scores:
        """Scores of predictions against what `references` gave for the same rows."""

    def final_scores(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        predictions: Sequence[str],
        references: Sequence[Any],
    ) -> Scores:
        """Scores of an evaluation: those of a validation, unless a task has some that take long or need the model."""
        return self.score(predictions, references)

    def references(self, split: TextPairs, rows: Sequence[int]) -> Sequence[Any]:
        """What predictions for `rows` are scored against: the targets, unless a task knows more."""
        return [split.targets[row] for row in rows]

    def sides(self, split: TextPairs) -> tuple[str, str]:
        """What messages call the two sides of a split."""
        return f"{split.name} sources", f"{split.name} targets"

    def can_score(self, split: TextPairs) -> bool:
        """Whether it has targets."""
        return bool(split.complete())

    def predictions(self, split: TextPairs, texts: Sequence[str]) -> tuple[str, str]:
        """The file of predictions, one for each row of `split`, and the suffix of its name."""
        return "".join(f"{text}\n" for text in texts), "txt"

    def shown(self, split: TextPairs, texts: Sequence[str]) -> dict[str, str]:
        """Files that show outputs to people, by the endings of their names; one text for each row of `split`."""
        return {}

    def too_long(self, split: TextPairs, tokenizer: PreTrainedTokenizerFast, maximum: int) -> int:
        """How many sources are over `maximum` tokens: targets are only read in training."""
        return sum(len(ids) > maximum for ids in encode(tokenizer, split.sources))

    def shorten(self, split: TextPairs, tokenizer: PreTrainedTokenizerFast, maximum: int) -> tuple[TextPairs, int]:
        """The split as it is read where inputs are truncated, and how many sources are over `maximum` tokens by then.

        What is still too long loses its end. A task does better that knows what of a source matters least.
        """
        return split, 0

    def shorten_lines(
        self, lines: Sequence[str], tokenizer: PreTrainedTokenizerFast, maximum: int
    ) -> tuple[Sequence[str], int]:
        """The same for lines that are given as the model reads them."""
        return lines, 0

    def tokenizer(self, split: TextPairs, vocab_size: int, max_length: int) -> PreTrainedTokenizerFast:
        """One vocabulary for both sides, learned from the training text."""
        return train_tokenizer(split.sources + split.targets, vocab_size, max_length)

    def examples(
        self,
        split: TextPairs,
        tokenizer: PreTrainedTokenizerFast,
        maximum: int,
        long: Long = "error",
        training: bool = False,
    ) -> Pairs:
        """Ids of all pairs of at most `maximum` tokens a side. Pairs with a blank side are dropped.

        Raises:
            UserError: a side is longer and `long` is "error"; or no pair is left.
        """
        shortened = 0
        if long == "truncate":
            split, shortened = self.shorten(split, tokenizer, maximum)
        sources, targets = encode(tokenizer, split.sources), encode(tokenizer, split.targets)
        names = self.sides(split)
        advice = "pass --drop-long to leave such pairs out, or --truncate to cut them"
        kept, over = fit_length(dict(zip(names, (sources, targets), strict=True)), maximum, long, advice)
        rows = sorted({*kept} & {*split.complete()})
        if not rows:
            raise UserError(f"{' | '.join(names)}: no pair of texts is left of {len(sources)}")
        return Pairs(
            [sources[row] for row in rows],
            [targets[row] for row in rows],
            rows,
            dropped=len(sources) - len(rows),
            truncated=max(over, shortened) if long == "truncate" else 0,
            skipped=split.skipped,
        )

    def collate(self, examples: Sequence[Pair], pad_token_id: int) -> dict[str, Tensor]:
        """input_ids and attention_mask (B, S), labels (B, T) with −100 where there is none."""
        return pair_collate(examples, pad_token_id)

    def tokens(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Real source and target tokens."""
        return batch["attention_mask"].sum() + (batch["labels"] != IGNORED).sum()

    def build(self, config: SynthesizerConfig) -> PreTrainedModel:
        """A new model, which generates up to its maximum length."""
        model = super().build(config)
        assert model.generation_config is not None
        model.generation_config.max_new_tokens = config.max_position_embeddings - 1
        return model

    def validate(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        split: TextPairs,
        examples: Examples[Pair],
        loss: float,
        share: Share,
    ) -> Scores:
        """Scores of what the model writes greedily."""
        assert isinstance(examples, Pairs)
        search = self.greedy(split, tokenizer)
        texts = decode(tokenizer, share.merge(generate_ids(model, examples.sources, search, share)))
        return self.score(texts, self.references(split, examples.rows))

    def greedy(self, split: TextPairs, tokenizer: PreTrainedTokenizerFast) -> BeamSearch:
        """How validation generates."""
        return GREEDY

    def search(self, options: Mapping[str, Any]) -> BeamSearch:
        """Beam search with `options` in place of the defaults.

        Raises:
            UserError: inputs are to be divided, which the task does not.
        """
        if options.get("split_long") and not self.divides:
            raise UserError(
                f"got --on-long split, but answers to the sentences of an input of {self.name} make no answer to all "
                f"of it; expected {self.on_long()}"
            )
        return BeamSearch(**options)

    def evaluate(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        split: TextPairs,
        search: BeamSearch,
        truncate: bool = False,
    ) -> Evaluation:
        """Generate from every source; pairs with a blank side are not scored, as they are not in validation."""
        shortened = 0
        if truncate:
            split, shortened = self.shorten(split, tokenizer, model.config.max_position_embeddings)
        where, _ = self.sides(split)
        texts, over = self.generate(model, tokenizer, split.sources, search, truncate, where)
        rows = split.complete()
        predictions, suffix = self.predictions(split, texts)
        return Evaluation(
            self.final_scores(model, tokenizer, [texts[row] for row in rows], self.references(split, rows)),
            examples=len(rows),
            predictions=predictions,
            suffix=suffix,
            answered=len(texts),
            truncated=0 if search.split_long else max(over, shortened),
            divided=over if search.split_long else 0,
            skipped=split.skipped,
            files=self.shown(split, texts),
        )

    def generate(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        lines: Sequence[str],
        search: BeamSearch,
        truncate: bool = False,
        where: str = "input",
        first_line: int = 1,
    ) -> tuple[list[str], int]:
        """A line for each line, in order; a blank line gives an empty one. And how many sources were cut or divided.

        Raises:
            UserError: sources are over the model's maximum, and neither `truncate` nor `search.split_long` is on.
        """
        if search.split_long:
            divided = divide(lines, tokenizer, model.config.max_position_embeddings, self.languages[0])
            each = replace(search, split_long=False)
            texts, _ = self.generate(model, tokenizer, divided.pieces, each, where=where, first_line=first_line)
            return divided.join(texts, separator(self.languages[1])), divided.divided
        maximum, advice = model.config.max_position_embeddings, f"pass {self.on_long()}"
        long: Long = "truncate" if truncate else "error"
        shortened = 0
        if truncate:
            lines, shortened = self.shorten_lines(lines, tokenizer, maximum)
        sources = encode(tokenizer, lines)
        _, over = fit_length({where: sources}, maximum, long, advice, first_line)
        rows = [row for row, line in enumerate(lines) if line.strip()]
        generated = generate_ids(model, [sources[row] for row in rows], search)
        texts = decode(tokenizer, Share().merge(generated))
        results = [""] * len(lines)
        for row, text in zip(rows, texts, strict=True):
            results[row] = text
        return results, max(over, shortened)
