"""Options of tasks: read from text, checked, kept."""

from dataclasses import dataclass, fields
from typing import Any, Literal

import pytest

from synthetic_attention.tasks import UserError, get_task, known_tasks
from synthetic_attention.tasks.options import check_options, missing_options
from synthetic_attention.tasks.translation import Translation
from synthetic_attention.training.overrides import parse_override, read_task_options
from synthetic_attention.training.settings import TrainingArguments, read_settings


@dataclass(frozen=True)
class Everything:
    path: str
    rate: float = 0.5
    count: int | None = None
    mode: Literal["blocks", "lines"] = "lines"
    names: tuple[str, ...] = ()


@pytest.mark.parametrize(
    "options",
    [
        {"path": "x"},
        {"path": "x", "rate": 1, "count": None, "mode": "blocks", "names": ["a", "b"]},
        {"path": "x", "rate": 1.5, "count": 3, "names": ("a",)},
    ],
)
def test_options_that_fit(options: dict[str, Any]) -> None:
    check_options(Everything, options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs path; pass --set path=…"),
        ({"path": "x", "colour": 1}, r"unknown option 'colour' .* expected some of: path, rate, count, mode, names"),
        ({"path": 3}, "got path=3; expected str"),
        ({"path": "x", "rate": "fast"}, "got rate='fast'; expected float"),
        ({"path": "x", "rate": True}, "got rate=True; expected float"),
        ({"path": "x", "count": 1.5}, "got count=1.5; expected int or null"),
        ({"path": "x", "mode": "words"}, "got mode='words'; expected one of: blocks, lines"),
        ({"path": "x", "names": "ab"}, "got names='ab'; expected a list of str"),
        ({"path": "x", "names": [1]}, r"got names=\[1\]; expected a list of str"),
    ],
)
def test_options_that_do_not(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_options(Everything, options)


def test_text_stays_text_and_the_rest_is_yaml() -> None:
    overrides = ["source=no", "target=1e3", "d_model=16"]
    # To YAML, no is false and 1e3 a number.
    assert read_task_options(Translation, overrides) == {"source": "no", "target": "1e3"}
    assert read_task_options(Everything, ["names=[a, b]", "count=3"]) == {"names": ["a", "b"], "count": 3}  # type: ignore[arg-type]
    # What is in quotes is a text to both.
    assert parse_override('revision="2.0"') == ("revision", "2.0")
    assert parse_override("rate=1e3") == ("rate", 1000.0)
    assert read_task_options(Translation, ['source="no"', "target='1e3'"]) == {"source": "no", "target": "1e3"}
    with pytest.raises(UserError, match="got source twice"):
        read_task_options(Translation, overrides, {"source": "en"})
    assert missing_options(Translation, {"source": "en"}) == ["target"]


def test_settings_leave_options_of_the_task_alone() -> None:
    common: dict[str, Any] = {"synthesizer": "random", "preset": "tiny", "seed": 1, "overrides": ["source=en"]}
    assert read_settings(**common, task=Translation).overrides == ["source=en"]
    with pytest.raises(UserError, match="unknown setting 'source'"):
        read_settings(**common)
    with pytest.raises(UserError, match=r"unknown setting 'sauce'.*source.*target"):
        read_settings(**{**common, "overrides": ["sauce=en"]}, task=Translation)


@pytest.mark.parametrize("name", known_tasks())
def test_no_option_of_a_task_is_a_setting_of_the_model_or_of_training(name: str) -> None:
    from synthetic_attention import SynthesizerConfig

    options = {field.name for field in fields(get_task(name))}
    assert not options & {field.name for field in fields(TrainingArguments)}
    assert not options & set(SynthesizerConfig.__annotations__)


def test_a_task_is_made_again_from_its_options() -> None:
    task = Translation("en", "de")
    hub = {"column": "translation", "subset": None, "revision": None}
    assert task.options() == {"source": "en", "target": "de", **hub}
    assert Translation.from_options(task.options()) == task
    assert Translation.headline({"loss": 1.0, "bleu": 36.905, "chrf": 61.2}) == "BLEU 36.91, chrF 61.20"
