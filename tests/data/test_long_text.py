"""Lines that are too long, divided at sentences, clauses, words and characters."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from synthetic_attention.data.long_text import divide, separator
from synthetic_attention.data.tokenizer import encode, train_tokenizer
from synthetic_attention.tasks import UserError


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Bytes and nothing else: a line has as many tokens as bytes, and one for `</s>`."""
    return train_tokenizer([], vocab_size=260, max_length=64)


def test_lines_that_fit_stay_as_they_are(tokenizer: PreTrainedTokenizerFast) -> None:
    lines = ["One. Two.", "", " spaced  out "]
    divided = divide(lines, tokenizer, 20, "en")
    assert (divided.pieces, divided.counts, divided.divided) == (lines, [1, 1, 1], 0)
    assert divided.join(["a", "", "c"], " ") == ["a", "", "c"]


def test_a_long_line_becomes_its_sentences(tokenizer: PreTrainedTokenizerFast) -> None:
    line = "Mr. Smith paid $3.50, not less!  Did he? At 5 p.m. he left."
    divided = divide(["One.", line, "Two."], tokenizer, 40, "en")
    assert divided.pieces == ["One.", "Mr. Smith paid $3.50, not less!", "Did he?", "At 5 p.m. he left.", "Two."]
    assert (divided.counts, divided.divided) == ([1, 3, 1], 1)
    assert divided.join(["1", "a", "b", "c", "2"], " ") == ["1", "a b c", "2"]


def test_the_language_knows_its_abbreviations(tokenizer: PreTrainedTokenizerFast) -> None:
    line = "Am 3. Mai kam z. B. Dr. Braun. Sonst niemand."
    expected = ["Am 3. Mai kam z. B. Dr. Braun.", "Sonst niemand."]
    assert divide([line], tokenizer, 40, "de").pieces == expected
    assert divide([line], tokenizer, 40, "de_AT").pieces == expected
    assert divide(["今日は晴れ。明日は雨。"], tokenizer, 20, "ja").pieces == ["今日は晴れ。", "明日は雨。"]
    assert divide(["One two. Three four."], tokenizer, 12, "no-such-language").pieces == ["One two.", "Three four."]


@pytest.mark.parametrize(
    ("line", "maximum", "pieces"),
    [
        # Clauses: as many as fit together.
        ("a b, c d, e f; g h: i j", 12, ["a b, c d,", "e f; g h:", "i j"]),
        ("first part - second part", 14, ["first part -", "second part"]),
        # Numbers and clock times are no clauses.
        ("at 10:30 we had 1,000 of it", 16, ["at 10:30 we had", "1,000 of it"]),
        ("一二，三四、五六；七", 16, ["一二，", "三四、", "五六；七"]),
        # Words, then characters, each with its combining marks.
        ("one two three four, five", 11, ["one two", "three", "four,", "five"]),
        ("abcdefghij kl", 6, ["abcde", "fghij", "kl"]),
        ("eeee\u0301e", 6, ["eee", "e\u0301e"]),
        # No sentence, and nothing to translate.
        (" " * 20, 6, []),
    ],
)
def test_what_is_left_of_a_sentence_that_is_too_long(
    tokenizer: PreTrainedTokenizerFast, line: str, maximum: int, pieces: list[str]
) -> None:
    divided = divide([line], tokenizer, maximum, "en")
    assert divided.pieces == pieces
    assert divided.join(pieces, " ") == [" ".join(pieces)]


@settings(max_examples=60, deadline=None)
@given(st.text(st.sampled_from("ab .,;é\u0301。—!\t"), max_size=60), st.integers(6, 20))
def test_nothing_is_lost_and_everything_fits(text: str, maximum: int) -> None:
    tokenizer = train_tokenizer([], vocab_size=260, max_length=64)
    divided = divide([text], tokenizer, maximum, "en")
    assert "".join("".join(divided.pieces).split()) == "".join(text.split())
    assert all(len(ids) <= maximum for ids in encode(tokenizer, divided.pieces))
    assert len(divided.pieces) == sum(divided.counts)


def test_a_character_longer_than_the_maximum_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(UserError, match=r"the character '語' alone is longer than the model's maximum"):
        divide(["日本語"[2:]], tokenizer, 3)


def test_a_line_of_any_length_takes_few_probes(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def counted(tokenizer: PreTrainedTokenizerFast, lines: list[str]) -> list[object]:
        calls.append(sum(map(len, lines)))
        return encode(tokenizer, lines)

    monkeypatch.setattr("synthetic_attention.data.long_text.encode", counted)
    line = "x" * 5000
    assert divide([line], tokenizer, 51, "en").pieces == ["x" * 50] * 100
    # Beside the whole line, at every level, each of the 100 pieces takes about 2 log₂ 50 probes.
    assert len(calls) < 100 * 20
    assert sum(calls) < 10 * len(line) + 100 * 20 * 100


def test_sentences_are_joined_as_the_language_does() -> None:
    assert [separator(code) for code in ("en", "de", "", "ja", "zh_TW", "th")] == [" ", " ", " ", "", "", ""]
    divided = divide(["x"], train_tokenizer([], 260, 8), 8)
    with pytest.raises(ValueError, match="got 2 outputs for 1 pieces"):
        divided.join(["a", "b"], " ")
