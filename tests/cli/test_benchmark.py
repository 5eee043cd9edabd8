"""synthesizer benchmark: tables, files, and one line for wrong options."""

import json
from pathlib import Path

import pytest

from cli.conftest import Call, check_error, succeed

SHAPES = ("--tokens", 32, "--lengths", "8,16", "--width", 16, "--heads", 2)
TINY = (*SHAPES, "--variants", "random,dense", "--device", "cpu")
SIZES = {"batch": 3, "prompt": 2, "new-tokens": 4, "layers": 1, "width": 8, "heads": 2, "vocabulary": 20}
MODELS = ("--variants=random", "--repeats=1", "--device=cpu", *(f"--{name}={size}" for name, size in SIZES.items()))


def test_tables_and_figures(call: Call, tmp_path: Path) -> None:
    words = ("full", "padded", "2×16", "peak MB", "mha", "sdpa", "dense")
    for name, options, expected in (
        ("attention", (*TINY, "--repeats", 1, "--masks", "full, padded"), words),
        ("encoder", (*TINY, "--layers", 2, "--repeats", 1, "--forward"), ("nn.TransformerEncoder", "4×8")),
        ("generation", MODELS, ("cache MB", "gpt2")),
        ("generation", (*MODELS, "--task=translation", "--num-beams=1,2", "--prompt=1,3"), ("3, 2 beams",)),
    ):
        out, _ = succeed(call("benchmark", name, *options, "--json", tmp_path / "figures.json"))
        assert all(word in out for word in (*expected, "random"))
        found = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))
        assert {"command", "date", "torch", "processor", "threads"} <= found.keys()
        assert all(result["name"] in out and result["parameters"] > 0 for result in found["results"])
        assert all(result["peak"] > 0 for result in found["results"] if name != "generation")


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (("attention", "--masks", "ful"), "'ful'"),
        (("attention", "--lengths", "8,x"), "'8,x'"),
        (("attention", "--variants", "radnom"), "'radnom'"),
        (("attention", "--json", "nowhere/a.json"), "nowhere/a.json"),
        (("generation", "--task", "chess"), "'chess'"),
        (("attention", "--device", "nonsense"), "'nonsense'"),
    ],
)
def test_a_wrong_option_is_one_line(call: Call, arguments: tuple[str, ...], fact: str) -> None:
    check_error(call("benchmark", *arguments), fact, code=2 if "--task" in arguments else 1)
