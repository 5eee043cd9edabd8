"""Options of tasks: read from text, checked, kept."""

from dataclasses import fields
from typing import Any

import pytest

from synthesizer_lab.tasks import UserError, get_task, known_tasks, make_task
from synthesizer_lab.tasks.language_modeling import LanguageModeling
from synthesizer_lab.tasks.translation import Translation
from synthesizer_lab.training.options import TrainingOptions
from synthesizer_lab.training.settings import parse_override, read_task_options
from synthetic_attention import SynthesizerConfig


def test_text_stays_text_and_the_rest_is_yaml() -> None:
    overrides = ["source=no", "target=1e3", "d_model=16"]
    # To YAML, no is false and 1e3 a number.
    assert read_task_options(Translation, overrides) == {"source": "no", "target": "1e3"}
    found = read_task_options(LanguageModeling, ["train_files=[a, b]", "max_documents=3"])
    assert found == {"train_files": ["a", "b"], "max_documents": 3}
    assert read_task_options(LanguageModeling, ["train_files=*.txt"]) == {"train_files": "*.txt"}
    # What is in quotes is a text to both.
    assert parse_override('revision="2.0"') == ("revision", "2.0")
    assert parse_override("rate=1e3") == ("rate", 1000.0)
    assert read_task_options(Translation, ['source="no"', "target='1e3'"]) == {"source": "no", "target": "1e3"}
    with pytest.raises(UserError, match="got source twice"):
        read_task_options(Translation, overrides, {"source": "en"})


@pytest.mark.parametrize("name", known_tasks())
def test_no_option_of_a_task_is_a_setting_of_the_model_or_of_training(name: str) -> None:
    options = {field.name for field in fields(get_task(name))}
    assert not options & TrainingOptions.__dataclass_fields__.keys()
    assert not options & set(SynthesizerConfig.__annotations__)


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("translation", {"source": "en"}, "needs target; pass --target"),
        ("translation", {"source": 3, "target": "de"}, "got source=3; expected str"),
        ("language-modeling", {"train_files": [1]}, r"got train_files=\[1\]; expected str or a list of str"),
        ("language-modeling", {"colour": 1}, "unknown option 'colour' .* expected some of: mode, train_files"),
        ("span-corruption", {"density": 1.5}, "got density=1.5 and"),
        ("dialogue", {"history": -1}, "got history=-1; expected at least 0"),
        ("glue", {"tasks": 3}, "got tasks=3"),
        ("classification", {"classes": [False, True]}, r"got classes=\[False, True\]; quote .*=\[.no., .yes.\]"),
        ("classification", {"text_pair": "a"}, "got no column .text.; expected text and label"),
        ("classification", {"text": "a"}, "got no column .label.; expected text and label, or neither"),
        ("classification", {"regression": True, "classes": ["a", "b"]}, "got regression and classes"),
    ],
)
def test_wrong_options_are_refused(task: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_task(task, options)
