"""Long lines are split into sentences, clauses, words and characters."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from synthetic_attention.data.long_inputs import separator, split_lines
from synthetic_attention.data.tokenizer import encode, train_tokenizer
from synthetic_attention.tasks import UserError


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Bytes and nothing else: a line has as many tokens as bytes, and one for `</s>`."""
    return train_tokenizer([], vocab_size=260, max_length=64)


def test_only_a_long_line_becomes_its_sentences(tokenizer: PreTrainedTokenizerFast) -> None:
    line = "Mr. Smith paid $3.50, not less!  Did he? At 5 p.m. he left."
    assert split_lines(["One. Two.", line, "", " spaced  out "], tokenizer, 40, "en") == [
        ["One. Two."],
        ["Mr. Smith paid $3.50, not less!", "Did he?", "At 5 p.m. he left."],
        [""],
        [" spaced  out "],
    ]


def test_the_language_knows_its_abbreviations(tokenizer: PreTrainedTokenizerFast) -> None:
    line = "Am 3. Mai kam z. B. Dr. Braun. Sonst niemand."
    expected = ["Am 3. Mai kam z. B. Dr. Braun.", "Sonst niemand."]
    assert split_lines([line], tokenizer, 40, "de") == [expected]
    assert split_lines([line], tokenizer, 40, "de_AT") == [expected]
    assert split_lines(["今日は晴れ。明日は雨。"], tokenizer, 20, "ja") == [["今日は晴れ。", "明日は雨。"]]
    assert split_lines(["One two. Three four."], tokenizer, 12, "no-such-language") == [["One two.", "Three four."]]


@pytest.mark.parametrize(
    ("line", "maximum", "parts"),
    [
        # Clauses: as many as fit together.
        ("a b, c d, e f; g h: i j", 12, ["a b, c d,", "e f; g h:", "i j"]),
        # Numbers and clock times are not split.
        ("at 10:30 we had 1,000 of it", 16, ["at 10:30 we had", "1,000 of it"]),
        ("一二，三四、五六；七", 16, ["一二，", "三四、", "五六；七"]),
        # Words, then characters.
        ("one two three four, five", 11, ["one two", "three", "four,", "five"]),
        ("abcdefghij kl", 6, ["abcde", "fghij", "kl"]),
        # No sentence, and nothing to translate.
        (" " * 20, 6, []),
    ],
)
def test_what_is_left_of_a_sentence_that_is_too_long(
    tokenizer: PreTrainedTokenizerFast, line: str, maximum: int, parts: list[str]
) -> None:
    assert split_lines([line], tokenizer, maximum, "en") == [parts]


@settings(max_examples=60, deadline=None)
@given(st.text(st.sampled_from("ab .,;é\u0301。—!\t"), max_size=60), st.integers(6, 20))
def test_nothing_is_lost_and_everything_fits(text: str, maximum: int) -> None:
    tokenizer = train_tokenizer([], vocab_size=260, max_length=64)
    (parts,) = split_lines([text], tokenizer, maximum, "en")
    assert "".join("".join(parts).split()) == "".join(text.split())
    assert all(len(ids) <= maximum for ids in encode(tokenizer, parts))


def test_a_character_longer_than_the_maximum_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(UserError, match=r"the character '語' alone is longer than the model's maximum"):
        split_lines(["日本語"[2:]], tokenizer, 3)


def test_sentences_are_joined_as_the_language_does() -> None:
    assert [separator(code) for code in ("en", "de", "", "ja", "zh_TW", "th")] == [" ", " ", " ", "", "", ""]
