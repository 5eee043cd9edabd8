"""What the tasks that generate share: settings, the loop over batches, long inputs, the page of examples."""

from dataclasses import replace
from typing import Any

import pytest

from synthesizer_lab.data.tokenizer import train_tokenizer
from synthesizer_lab.tasks import UserError, generation, get_task
from synthesizer_lab.tasks.base import EvaluationLoop, build_model
from synthesizer_lab.tasks.dialogue import Dialogue
from synthesizer_lab.tasks.generation import (
    evaluation_config,
    generation_label,
    generation_settings,
    make_generation_config,
)
from synthesizer_lab.tasks.glue import Glue
from synthesizer_lab.tasks.language_modeling import LanguageModeling
from synthesizer_lab.tasks.seq2seq import TextPairs
from synthesizer_lab.tasks.summarization import Summarization
from synthesizer_lab.tasks.translation import Translation
from synthetic_attention import SynthesizerConfig

TRANSLATION = Translation("en", "de")
TEXT = TextPairs("train", ["a cat sat", "two cats", "a dog"], ["eine Katze", "zwei Katzen", "Hund"])


@pytest.mark.parametrize(
    ("task", "beams", "penalty", "most"),
    [
        (TRANSLATION, 4, 0.6, None),
        (Summarization(max_summary_tokens=7), 4, 0.6, 7),
        (Dialogue(max_reply_tokens=9), 4, 0.6, 9),
        (Glue(), 1, 1.0, None),
        (LanguageModeling(), 1, 1.0, None),
    ],
)
def test_defaults_of_generation(task: Any, beams: int, penalty: float, most: int | None) -> None:
    config = task.generation_config({})
    assert (config.num_beams, config.length_penalty, config.max_new_tokens) == (beams, penalty, most)
    assert not config.do_sample
    assert task.generation_config({"max_new_tokens": 3}).max_new_tokens == 3
    assert task.generation_config({"num_beams": 1}).length_penalty == 1.0
    assert task.generation_config({"do_sample": True}).max_new_tokens == most


def test_settings_are_in_results_and_file_names() -> None:
    config = make_generation_config({"min_new_tokens": 2, "no_repeat_ngram_size": 3}, max_new_tokens=7)
    assert generation_label(config) == "beam4.penalty0.6.min2.max7.ngram3"
    assert [*generation_settings(config).values()] == [4, 0.6, 2, 7, 3]


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 0},
        {"max_new_tokens": 2, "min_new_tokens": 2},
        {"temperature": 0.5},
        {"do_sample": True, "temperature": -1},
        {"do_sample": True, "top_p": 0.0},
        {"do_sample": True, "num_beams": 2},
    ],
)
def test_invalid_settings_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=[*options][0 if len(options) == 1 or "min_new_tokens" in options else 1]):
        make_generation_config(options)


@pytest.mark.parametrize("name", ["classification", "language-modeling", "span-corruption"])
def test_tasks_scored_without_generation_refuse_its_options(name: str) -> None:
    task = get_task(name)()
    assert evaluation_config(task, {}) is None
    with pytest.raises(UserError, match=f"--num-beams.*{name}"):
        evaluation_config(task, {"num_beams": 2})
    with pytest.raises(UserError, match=f"got --seed.*{name}"):
        evaluation_config(task, {"do_sample": True})


def _model(vocabulary: int, length: int = 48) -> Any:
    size = {"d_model": 16, "num_heads": 2, "d_ff": 16, "num_layers": 1, "max_position_embeddings": length}
    return build_model(TRANSLATION, SynthesizerConfig(vocab_size=vocabulary, synthesizer="random", **size)).eval()


def test_outputs_do_not_depend_on_the_batches() -> None:
    tokenizer = train_tokenizer(TEXT.sources, 300, 48)
    model = _model(len(tokenizer))
    lines = ["a cat sat on a dog " * size for size in (1, 2, 1, 2)] + [""]
    greedy = TRANSLATION.generation_config({"num_beams": 1, "max_new_tokens": 6})
    loops = [EvaluationLoop(model, tokenizer, batch_tokens=size, generation=greedy) for size in (4096, 1)]
    found = [TRANSLATION.generate(loop, lines) for loop in loops]
    assert found[0] == found[1]
    assert found[0][0][-1] == ""
    assert model.training is False


def test_a_search_has_at_most_the_vocabulary_as_beams() -> None:
    tokenizer = train_tokenizer(TEXT.sources, 300, 48)
    search = TRANSLATION.generation_config({"num_beams": len(tokenizer) + 1})
    with pytest.raises(UserError, match="vocabulary"):
        TRANSLATION.generate(EvaluationLoop(_model(len(tokenizer), 24), tokenizer, generation=search), ["one"])


def test_a_length_penalty_of_0_reaches_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, found = train_tokenizer(TEXT.sources, 300, 48), dict[str, Any]()
    search = TRANSLATION.generation_config({"length_penalty": 0})
    monkeypatch.setattr(generation, "generate", lambda _, **given: found.update(given) or given["input_ids"])
    TRANSLATION.generate(EvaluationLoop(_model(len(tokenizer)), tokenizer, generation=search), ["one"])
    assert found["length_penalty"] == 0


def test_long_inputs_are_refused_or_truncated() -> None:
    tokenizer = train_tokenizer(TEXT.sources, 300, 48)
    greedy = TRANSLATION.generation_config({"num_beams": 1, "max_new_tokens": 4})
    loop = EvaluationLoop(_model(len(tokenizer), 24), tokenizer, generation=greedy)
    lines = ["a cat", "One cat sat. Two dogs sat. A cat sat on a dog."]
    with pytest.raises(UserError, match=r"input: 1 of 2 .* 24 tokens .*line 2.*--on-long truncate"):
        TRANSLATION.generate(loop, lines)
    with pytest.raises(UserError, match=r"test\.en: 1 of 2 .* 24 tokens"):
        TRANSLATION.evaluate(loop, TextPairs("test", lines, lines, sides=(".en", ".de")))
    outputs, count = TRANSLATION.generate(replace(loop, on_long="truncate"), lines)
    assert (len(outputs), count) == (2, 1)
    # Pairs with a blank side are not scored.
    blank = TextPairs("test", ["a cat", "", "a dog"], ["x", "y", ""], sides=(".en", ".de"))
    assert TRANSLATION.evaluate(loop, blank).examples == 1
