"""Options of tasks: read from text, checked, kept."""

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import pytest

from synthetic_attention.tasks import UserError, get_task, known_tasks
from synthetic_attention.tasks.options import check_options, chosen_options, missing_options
from synthetic_attention.tasks.translation import Translation
from synthetic_attention.training.arguments import argument_types
from synthetic_attention.training.settings import parse_override, read_task_options


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


@pytest.mark.parametrize("name", known_tasks())
def test_no_option_of_a_task_is_a_setting_of_the_model_or_of_training(name: str) -> None:
    from synthetic_attention import SynthesizerConfig

    options = {field.name for field in fields(get_task(name))}
    assert not options & argument_types().keys()
    assert not options & set(SynthesizerConfig.__annotations__)


def test_a_task_is_made_again_from_its_options() -> None:
    task = Translation("en", "de")
    assert Translation.from_options(asdict(task)) == task
    assert chosen_options(Translation, asdict(task)) == {"source": "en", "target": "de"}
