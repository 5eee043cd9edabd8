"""A vocabulary of words: the most frequent ones, and what the others cost."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from synthetic_attention import SynthesizerConfig, SynthesizerForCausalLM
from synthetic_attention.data.corpus import read_corpus
from synthetic_attention.data.tokenizer import (
    Spelling,
    encode,
    known_words,
    normalized,
    spelling,
    train_word_tokenizer,
)
from synthetic_attention.errors import UserError
from synthetic_attention.tasks.base import EvaluationLoop
from synthetic_attention.tasks.generation import make_generation_config, stream_text
from synthetic_attention.tasks.language_modeling import LanguageModeling

TEXTS = ["the cat and the dog", "the dog and a bird", "an <unk> bird", "the end </s> of"]


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    return train_word_tokenizer(TEXTS, 9, 32)


def test_the_most_frequent_words_are_known(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.convert_ids_to_tokens([*range(9)]) == [
        *("<pad>", "<s>", "</s>", "<unk>", "the", "and", "bird", "dog", "a"),
    ]
    assert known_words(tokenizer) == {"<unk>", "the", "and", "bird", "dog", "a"}
    ids = encode(tokenizer, ["the cat and <unk> </s> <pad> a"])[0].tolist()
    # A name of a special token in the text is a word like others, and <unk> is what it says.
    assert ids == [4, 3, 5, 3, 3, 3, 8]
    assert tokenizer.decode([4, 7, 5]) == "the dog and"
    with pytest.raises(UserError, match="got vocab_size=4; expected more than 4"):
        train_word_tokenizer(TEXTS, 4, 32)


def test_spellings_are_learned_and_come_with_the_tokenizer(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    # Each as often as the training text has it; <unk> needs no spelling.
    expected = Spelling.learned(["cat", "an", "end", "</s>", "of"])
    np.testing.assert_allclose(spelling(tokenizer).nats, expected.nats)
    tokenizer.save_pretrained(tmp_path)
    np.testing.assert_allclose(spelling(PreTrainedTokenizerFast.from_pretrained(str(tmp_path))).nats, expected.nats)
    del tokenizer.init_kwargs["spelling_nats"]
    with pytest.raises(UserError, match="without spelling_nats"):
        spelling(tokenizer)


def test_a_text_goes_on_with_a_space(tokenizer: PreTrainedTokenizerFast) -> None:
    config = SynthesizerConfig(
        vocab_size=9,
        d_model=8,
        num_heads=2,
        d_ff=8,
        num_layers=1,
        max_position_embeddings=16,
        bos_token_id=2,
        eos_token_id=2,
    )
    model = SynthesizerForCausalLM(config)
    # It writes "dog" for ever.
    torch.nn.init.zeros_(model.get_input_embeddings().weight)
    model.set_output_embeddings(torch.nn.Linear(8, 9))
    torch.nn.init.zeros_(model.get_output_embeddings().weight)
    model.get_output_embeddings().bias.data = torch.eye(9)[7]
    greedy = make_generation_config({"do_sample": True, "max_new_tokens": 2, "temperature": 0})
    for ids, text in (([2, 4, 8], " dog dog"), ([2], "dog dog"), ([2, 4, 2], "dog dog")):
        parts: list[str] = []
        stream_text(EvaluationLoop(model, tokenizer), np.array(ids), greedy, parts.append, many_lines=True)
        assert "".join(parts) == text


def test_whitespace_is_what_python_calls_so(tokenizer: PreTrainedTokenizerFast) -> None:
    text = " the\u00a0dog\x1cand \t a\u2029bird\u3000"
    assert normalized(text) == "the dog and a bird"
    assert len(encode(tokenizer, [normalized(text)])[0]) == len(text.split())


def test_unknown_words_are_charged() -> None:
    task = LanguageModeling(vocabulary="words")
    text = read_corpus("train", [normalized(line) for line in TEXTS])
    tokenizer = task.train_tokenizer(text, 9, 32)
    scored = read_corpus("valid", ["the cat", "a <unk> dog"])
    examples = task.encode(scored, tokenizer, 32)
    cost = spelling(tokenizer).cost(["cat"])
    assert examples.counts.tolist() == [[3, 8, 1, pytest.approx(cost)], [4, 12, 0, 0]]
    assert examples[0].ids.tolist() == [2, 4, 3, 2]
    scores = task.validate(EvaluationLoop(None, tokenizer), scored, examples, 0.5)  # type: ignore[arg-type]
    # Seven tokens: five words and two ends.
    assert scores["perplexity"] == pytest.approx(math.exp(0.5))
    assert scores["word_perplexity"] == pytest.approx(math.exp((7 * 0.5 + cost) / 7))
    assert scores["bits_per_byte"] == pytest.approx((7 * 0.5 + cost) / math.log(2) / 20)
    assert scores["unknown_words"] == 1


def test_texts_are_read_normalized(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("two  words \n\n\tone\n", encoding="utf-8")
    assert LanguageModeling(vocabulary="words").read(tmp_path, "train").texts == ["two words", "one"]
    assert LanguageModeling(vocabulary="words", mode="blocks").read(tmp_path, "train").texts == ["two words", "", "one"]
    assert LanguageModeling().read(tmp_path, "train").texts == ["two  words ", "\tone"]
