"""The task of language modelling: sentences, blocks; what is scored and what it is counted in."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from synthesizer_lab.data.examples import IGNORED
from synthesizer_lab.data.source import Corpus
from synthesizer_lab.data.tokenizer import encode
from synthesizer_lab.tasks import UserError
from synthesizer_lab.tasks.base import EvaluationLoop, count_tokens, evaluate_loss
from synthesizer_lab.tasks.language_modeling import LanguageModeling, LanguageRows, count_text, text_scores
from synthesizer_lab.tasks.large import new_tokenizer
from synthetic_attention.models import SynthesizerConfig, SynthesizerForCausalLM

END = 2
LINES = [f"line {number} of a text that says {'so ' * (number % 5)}{number * number}" for number in range(40)]
TEXT = Corpus("train", LINES)
MAXIMUM = 48


def _made(task: LanguageModeling, maximum: int = MAXIMUM) -> tuple[Any, LanguageRows]:
    tokenizer = new_tokenizer(task, TEXT, 300, maximum)
    return tokenizer, task.encode(TEXT, tokenizer, maximum)


def _model(vocabulary: int, synthesizer: str = "dense+random") -> SynthesizerForCausalLM:
    size = {"d_model": 16, "num_heads": 2, "d_ff": 32, "num_layers": 1, "max_position_embeddings": MAXIMUM}
    return SynthesizerForCausalLM(SynthesizerConfig(vocab_size=vocabulary, synthesizer=synthesizer, **size)).eval()


def _row(task: LanguageModeling, examples: LanguageRows, index: int) -> list[np.ndarray]:
    """Ids, labels, and the number of the sentence of each token or the attention mask."""
    batch = task.collate([examples[index]], 0)
    return [batch.pop(name)[0].numpy() for name in ("input_ids", "labels", *({*batch} - {"input_ids", "labels"}))]


def test_a_sentence_begins_and_ends_with_its_end() -> None:
    task = LanguageModeling()
    tokenizer, examples = _made(task)
    for number, ids in enumerate(encode(tokenizer, LINES)):
        row = _row(task, examples, number)
        assert row[0].tolist() == [*ids.tolist(), END]
        assert row[0][0] == END
        assert row[1].tolist() == [IGNORED, *ids[1:].tolist(), END]
        assert tokenizer.decode(row[0], skip_special_tokens=True) == LINES[number]
    batch = task.collate([examples[3], examples[4]], 0)
    assert count_tokens(batch, with_targets=False) == examples.lengths()[3:5].sum()
    assert (batch["labels"] != IGNORED).sum() == examples.scored()[3:5].sum()
    # What a user's tokenizer makes of a prompt is what the model was trained to go on from.
    assert tokenizer("a </s>")["input_ids"] == encode(tokenizer, ["a </s>"])[0].tolist()
    assert tokenizer("a </s>")["input_ids"].count(END) == 1


@pytest.mark.parametrize("maximum", [7, 10, 48, 1000])
def test_every_token_of_running_text_is_scored_once(maximum: int) -> None:
    task = LanguageModeling(mode="blocks")
    tokenizer, examples = _made(task, maximum)
    stream = [*np.concatenate(encode(tokenizer, LINES)).tolist(), END]
    overlap = maximum // 2
    step = maximum - overlap
    scored: list[int] = []
    for index in range(len(examples)):
        row = _row(task, examples, index)
        assert row[0].tolist() == stream[index * step : index * step + maximum]
        assert len(row[0]) == examples.lengths()[index, 0]
        labels = row[1][row[1] != IGNORED].tolist()
        assert len(labels) == examples.scored()[index]
        assert len(row[0]) - len(labels) == (1 if index == 0 else overlap)
        scored += labels
    assert scored == stream[1:]
    # In training a block begins with the last token of the one before.
    training = task.encode(TEXT, tokenizer, maximum, training=True)
    labels = np.concatenate([_row(task, training, index)[1][1:] for index in range(len(training))])
    assert labels.tolist() == stream[1:]


def test_scores_are_those_of_the_definition() -> None:
    task = LanguageModeling()
    tokenizer, examples = _made(task)
    model = _model(len(tokenizer))
    rows = [torch.tensor([*ids.tolist(), END]) for ids in encode(tokenizer, LINES)]
    nats = sum(cross_entropy(model(row[None]).logits[0, :-1], row[1:], reduction="sum").item() for row in rows)
    tokens, words = sum(len(row) - 1 for row in rows), sum(len(line.split()) + 1 for line in LINES)
    loop = EvaluationLoop(model, tokenizer, 150)
    loss = evaluate_loss(task, loop, examples)
    expected = {
        "perplexity": math.exp(nats / tokens),
        "word_perplexity": math.exp(nats / words),
        "bits_per_byte": nats / math.log(2) / sum(len(line.encode()) + 1 for line in LINES),
    }
    expected |= {"tokens": tokens, "words": words, "bytes": sum(map(len, LINES)) + 40}
    assert task.validate(loop, TEXT, examples, loss) == pytest.approx(expected, rel=1e-5)
    found = task.evaluate(EvaluationLoop(model, tokenizer), TEXT)
    assert found.scores == pytest.approx({**expected, "loss": nats / tokens}, rel=1e-5)


def test_on_long() -> None:
    task = LanguageModeling()
    text = Corpus("valid", ["one two", "word " * 60, "three"])
    tokenizer = new_tokenizer(task, TEXT, 300, MAXIMUM)
    message = r"valid sentences: 1 of 3 .* of 48 .*sentence 2, the longest has \d+\); .*--on-long truncate, .*drop$"
    with pytest.raises(UserError, match=message):
        task.encode(text, tokenizer, MAXIMUM)
    dropped = task.encode(text, tokenizer, MAXIMUM, "drop")
    assert (len(dropped), dropped.dropped, dropped.truncated) == (2, 1, 0)
    assert dropped.words == 3 + 2
    cut = task.encode(text, tokenizer, MAXIMUM, "truncate")
    assert (len(cut), cut.dropped, cut.truncated) == (3, 0, 1)
    ids = encode(tokenizer, ["word " * 60])[0]
    assert cut[1][0].tolist() == [*ids[:47].tolist(), END]
    # What is cut off is not counted: else the perplexity would look better.
    assert cut.words == 3 + len(str(tokenizer.decode(ids[1:47])).split()) + 1 + 2
    with pytest.raises(UserError, match="no sentence is left of 1"):
        task.encode(Corpus("valid", ["word " * 60]), tokenizer, MAXIMUM, "drop")


def test_files_and_data_sets_of_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for split in ("train", "valid"):
        (tmp_path / f"wiki.{split}.tokens").write_text("a text\n", encoding="utf-8")
    task = LanguageModeling(train_files="wiki.train.tokens", valid_files="wiki.valid.*")
    assert [task.records(tmp_path, split).load().name for split in ("train", "valid")] == ["train", "valid"]
    with pytest.raises(UserError, match=r"no file valid\.txt; .*wiki\.train\.tokens.*--set valid_files=…"):
        LanguageModeling().records(tmp_path, "valid").load()
    asked: list[Any] = []

    def load_dataset(name: str, subset: str, **options: Any) -> Any:
        asked.append((name, subset, options["split"], options["revision"]))
        rows = [{"body": "a sentence\n"}, {"body": "\n"}, {"body": "another"}]
        return type("Rows", (list,), {"column_names": ["body"]})(rows)

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    task = LanguageModeling(column="body", subset="small", revision="v1", valid_files="test[:10%]")
    assert task.records(Path("hub:owner/name"), "train").load().texts == ["a sentence", "another"]
    assert task.records(Path("hub:owner/name"), "valid").load().name == "valid"
    assert asked == [("owner/name", "small", "train", "v1"), ("owner/name", "small", "test[:10%]", "v1")]
    with pytest.raises(UserError, match="expected the name of one split of hub:owner/name"):
        LanguageModeling(train_files=["a", "b"]).records(Path("hub:owner/name"), "train").load()


def test_words_and_bytes_are_counted_with_line_ends() -> None:
    assert count_text(["a  cat", "", "zoë !"]) == (4 + 3, 6 + 0 + 6 + 3)


def test_a_model_that_knows_nothing_has_the_perplexity_of_its_vocabulary() -> None:
    # 256 bytes and an end, all equally likely, over "ab c": 5 symbols, 2 words and the end, 5 bytes with the newline.
    scores = text_scores(math.log(257), tokens=5, words=3, size=5)
    expected = {"perplexity": 257, "word_perplexity": 257 ** (5 / 3), "bits_per_byte": math.log2(257)}
    assert scores == pytest.approx(expected)
    assert text_scores(1e6, 1, 1, 1)["perplexity"] == "not a finite number"
