"""Tokenizer, examples, batches and scores of translation."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from synthesizer_lab.data.tokenizer import decode, encode, train_tokenizer
from synthesizer_lab.tasks import UserError
from synthesizer_lab.tasks.generation import suppressed_tokens
from synthesizer_lab.tasks.large import new_tokenizer
from synthesizer_lab.tasks.seq2seq import TextPairs
from synthesizer_lab.tasks.translation import Translation

TEXT = TextPairs(
    "train", ["a cat sat", "two cats", "", "a dog"] * 3, ["eine Katze saß", "zwei Katzen", "x", "Hund"] * 3
)
TASK = Translation("en", "de")
LINES = ["Grüße aus Köln! 你好 🙂", "  two  spaces", "</s> is text <pad>", "tab\there"]


def test_any_text_survives_the_vocabulary_and_a_reload(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(TEXT.sources + TEXT.targets, vocab_size=280, max_length=32)
    rows = encode(tokenizer, LINES)
    assert decode(tokenizer, rows) == [line.strip() for line in LINES]
    tokenizer.save_pretrained(tmp_path)
    reloaded = AutoTokenizer.from_pretrained(tmp_path)
    for line, ids in zip(LINES, rows, strict=True):
        assert ids[-1] == tokenizer.eos_token_id
        assert reloaded(line)["input_ids"] == ids.tolist()
        assert reloaded.decode(ids, skip_special_tokens=True) == line
    assert [reloaded.pad_token_id, reloaded.bos_token_id, reloaded.eos_token_id] == [0, 1, 2]
    # A generated newline stays on the line; other separators do not end one.
    assert decode(tokenizer, encode(tokenizer, ["a\nb\r\nc", "a\u2028b"])) == ["a b c", "a\u2028b"]
    with pytest.raises(UserError, match="got vocab_size=100; expected at least 260"):
        train_tokenizer(TEXT.sources, vocab_size=100, max_length=32)


def test_special_tokens_of_a_tokenizer_from_elsewhere() -> None:
    backend = Tokenizer(WordLevel({"a": 0, "[PAD]": 1, "</s>": 2}))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", eos_token="</s>")
    assert suppressed_tokens(tokenizer) == [1]
    assert decode(tokenizer, [[1, 0, 2]]) == ["a"]


def test_blank_sides_are_dropped_and_rows_remembered() -> None:
    tokenizer = new_tokenizer(TASK, TEXT, 300, 32)
    examples = TASK.encode(TEXT, tokenizer, max_length=32)
    assert (len(examples), examples.dropped) == (9, 3)
    assert examples.rows == [row for row in range(12) if row % 4 != 2]
    with pytest.raises(UserError, match="no pair of texts is left of 2"):
        TASK.encode(TextPairs("train", ["a", ""], ["", "b"]), tokenizer, max_length=16)


def test_on_long_are_refused_dropped_or_truncated() -> None:
    text = TextPairs("train", ["a", "b " * 20, "c"], ["d", "e", "f " * 30], sides=(".en", ".de"))
    tokenizer = train_tokenizer(["x"], 260, 16)
    with pytest.raises(
        UserError,
        match=r"train\.en: 1 of 3 lines .* maximum of 16 tokens .*line 2, the longest has 41\); "
        r"train\.de: 1 of 3 .*line 3, the longest has 61\); pass --on-long truncate, or in training --on-long drop$",
    ):
        TASK.encode(text, tokenizer, max_length=16)
    dropped = TASK.encode(text, tokenizer, max_length=16, on_long="drop")
    assert (len(dropped), dropped.dropped, dropped.truncated) == (1, 2, 0)
    cut = TASK.encode(text, tokenizer, max_length=16, on_long="truncate")
    assert (len(cut), cut.dropped, cut.truncated) == (3, 0, 2)
    assert cut.lengths().max() == 16
    assert cut[1][0][-1] == tokenizer.eos_token_id
    # The other side of a long pair stays as it is.
    assert cut[1][1].tolist() == encode(tokenizer, ["e"])[0].tolist()


def test_languages_and_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    (tmp_path / "train.en").write_text("a\nb\n", encoding="utf-8")
    (tmp_path / "train.de").write_text("a\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"train\.en has 2 lines and .*train\.de has 1"):
        TASK.records(tmp_path, "train").load()
    (tmp_path / "test.en").write_text("\na\n", encoding="utf-8")
    (tmp_path / "test.de").write_text("a\n\n", encoding="utf-8")
    assert not TASK.records(tmp_path, "test").load().has_labels
    with pytest.raises(UserError, match="expected two different ones"):
        Translation("en", "en")


def test_scores_and_their_signatures() -> None:
    references = ["das ist ein kleines Haus ", "der Hund schläft heute lange", "ja", "nein"]
    scores = TASK.score([text.strip() for text in references], references)
    assert (scores["bleu"], scores["chrf"], scores["exact_match"]) == pytest.approx((100, 100, 100))
    assert "tok:13a" in str(scores["bleu_signature"])
    assert "nc:6" in str(scores["chrf_signature"])
    predictions = ["das ist ein kleines Haus", "der Hund schläft heute lang", "ja", "Nein"]
    assert TASK.score(predictions, references)["exact_match"] == 50
    for target in ("zh", "zh_CN", "zho_Hans"):
        assert "tok:zh" in str(Translation("en", target).score(["你好世界再见"], ["你好世界再见"])["bleu_signature"])


def test_pairs_on_the_hub_are_in_one_column_or_in_two(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Path("hub:wmt/wmt14")
    row = {"translation": {"de": "Hund", "en": "a\n dog"}, "en": "a cat", "de": "Katze"}
    table = type("Rows", (list,), {"column_names": [*row]})([row])
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: table)
    split = Translation("en", "de", subset="de-en").records(data, "valid").load()
    assert (split.name, split.sources, split.targets) == ("valid", ["a dog"], ["Hund"])
    split = Translation("de", "en", column=None).records(data, "train").load()
    assert (split.sources, split.targets) == (["Katze"], ["a cat"])
    with pytest.raises(UserError, match=r"row 1: no text for en and fr; got {'de': 'Hund', 'en'"):
        Translation("en", "fr").records(data, "train").load()
    with pytest.raises(UserError, match=r"no column fr; its columns are: translation, en, de"):
        Translation("en", "fr", column=None).records(data, "train").load()
