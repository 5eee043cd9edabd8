"""--on-long: inputs over the maximum are refused, divided or cut, as asked."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from synthetic_attention.tasks import seq2seq

LONG = "one plus two. " * 9 + "three, " * 30


@pytest.fixture
def _echo(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that writes what it reads, without `</s>`."""

    def echo(model: object, sources: Sequence[np.ndarray], *options: object) -> dict[int, list[int]]:
        return {index: source[:-1].tolist() for index, source in enumerate(sources)}

    monkeypatch.setattr(seq2seq, "generate_ids", echo)


@pytest.mark.usefixtures("_echo")
def test_a_long_line_is_divided_if_asked(call, trained: Path) -> None:
    for choice in ([], ["--on-long", "error"]):
        code, out, err = call("generate", trained, LONG, "two", *choice)
        assert (code, out) == (1, "")
        assert "1 of 2 lines are longer than the maximum of 64 tokens" in err
        assert "pass --on-long split or --on-long truncate" in err
    code, out, err = call("generate", trained, LONG, "", "two", "--on-long", "split")
    assert (code, out, err) == (0, f"{LONG.strip()}\n\ntwo\n", "1 lines divided into sentences\n")
    cut = call("generate", trained, LONG, "--on-long", "truncate")
    assert cut == call("generate", trained, LONG, "--truncate")
    assert LONG.startswith(cut[1].strip())
    assert "1 lines truncated" in cut[2]


def test_an_evaluation_divides_and_says_so(call, trained: Path, corpus: Path, tmp_path: Path) -> None:
    for language in ("en", "de"):
        text = (corpus / f"test.{language}").read_text(encoding="utf-8")
        (tmp_path / f"test.{language}").write_text(f"{text}{LONG}\n", encoding="utf-8")
    command = ("evaluate", trained, "--data", tmp_path, "--json", "--beams", 1)
    code, out, err = call(*command)
    assert (code, out) == (1, "")
    assert "--on-long split" in err
    code, out, err = call(*command, "--on-long", "split")
    divided = json.loads(out)
    assert (code, divided["divided"], divided["truncated"], divided["split_long"]) == (0, 1, 0, True)
    assert "1 inputs divided into sentences" in err
    code, out, _ = call(*command, "--on-long", "truncate")
    cut = json.loads(out)
    assert (code, cut["divided"], cut["truncated"], cut["split_long"]) == (0, 0, 1, False)
    assert divided["predictions"] != cut["predictions"]


@pytest.mark.parametrize("command", ["generate", "evaluate"])
def test_choices_that_cannot_be(call, trained: Path, command: str) -> None:
    code, out, err = call(command, trained, "--on-long", "drop")
    assert (code, out) == (2, "")
    assert "expected one of: error, split, truncate" in err
    code, out, err = call(command, trained, "--on-long", "split", "--truncate")
    assert (code, out) == (2, "")
    assert "exclude each other" in err
