"""Command lines from our options with odd values: they work or report one line, and none hangs."""

import shutil
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from typer.main import get_command

from fuzz.harness import fuzzed, time_limit
from fuzz.runs import CANARY, LANGUAGES, TAG, check_reported, home, run_command
from synthesizer_lab.cli.app import app
from training.conftest import SMALL

__all__ = ["home"]

SETS = tuple(argument for override in SMALL for argument in ("--set", override))
TRAINING = ("--data", "data", *LANGUAGES, *SETS, "--steps", "1", "--output", "new")
SIZES = ("--variants", "dense", "--width", "8", "--heads", "2", "--repeats", "1")
LAYERS = (*SIZES, "--lengths", "8", "--tokens", "16", "--masks", "full")
# A line for each command that takes a second or less.
LINES: tuple[tuple[str, ...], ...] = (
    ("train", "translation", *TRAINING),
    ("train", "language-modeling", "--data", "data", "--set", "train_files=train.en", *SETS, "--dry-run"),
    ("compare", "translation", "--synthesizers", "dense", *TRAINING),
    ("evaluate", "run", "--split", "valid", "--num-beams", "1"),
    ("generate", "run", "the tea"),
    ("settings", "learning_rate"),
    ("benchmark", "attention", *LAYERS),
    ("benchmark", "encoder", *LAYERS, "--layers", "1"),
    ("benchmark", "generation", *SIZES, "--batch", "1", "--prompt", "4", "--new-tokens", "2", "--layers", "1"),
)
# A compilation takes a minute; so many repeats as the user likes; a hub data set needs a network.
LEFT_OUT = {"--torch-compile", "--repeats", "--minutes"}
# fmt: off
VALUES = (
    "", " ", "-1", "0", "1", "3", "0.5", "1e400", "-inf", "nan", "99999999999999999999", "1_0", "x", "é\u2028",
    "-", "--", "=", "a=b", "[", "{a: [", "null", "a\x1b[31m\nb", "x" * 3000, TAG, "\udcff", "text", "cpu", "cuda:99",
    "/dev/null", "/", ".", "data", "run", "nowhere", "loop", "loop/x", "data/train.en", "random:0/vanilla:9",
    "dense,dense", "dense@vocab_size=1", "[dense]", "{encoder: dense}", "num_layers=0", "d_model=7", "vocab_size=1",
    "batch_tokens=1", "max_position_embeddings=1", "dropout_rate=2", "learning_rate=1e308", "eval_steps=1e3",
    "train_files=../*", "train_files=[/, x]", "random.scores=1", "factorized_random.rank=0",
)
# fmt: on


def _options(words: tuple[str, ...]) -> list[Any]:
    """The options of a command."""
    command: Any = get_command(app)
    for word in words:
        command = getattr(command, "commands", {}).get(word, command)
    return [each for each in command.params if each.param_type_name == "option" and not {*each.opts} & LEFT_OUT]


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """A line with a few options more, and maybe a word replaced, repeated or left out."""
    line = draw(st.sampled_from(LINES))
    words = list(line)
    options = _options(line[:2])
    for option in draw(st.lists(st.sampled_from(options), min_size=1, max_size=3)) if options else ():
        words.append(option.opts[0])
        if not option.is_flag:
            words.append(draw(st.sampled_from(VALUES)))
    kind, place = (
        draw(st.sampled_from(("more", "more", "replace", "repeat", "omit"))),
        draw(st.integers(0, len(line) - 1)),
    )
    # Without its small sizes a benchmark takes minutes.
    if line[0] != "benchmark" and place:
        changes = {"replace": [draw(st.sampled_from(VALUES))], "repeat": [words[place]] * 2, "omit": []}
        words[place : place + 1] = changes.get(kind, [words[place]])
    # Whatever the steps are now.
    return [*words, "--minutes", "0.02"] if line[0] in ("train", "compare") else words


@given(command_lines())
@fuzzed(10, 200, shrink=False)
def test_command_lines(home: Path, line: list[str]) -> None:
    shutil.copytree(home / "intact", home / "run")
    (home / "loop").symlink_to("loop")
    try:
        with time_limit(60):
            check_reported(*run_command(*line))
        assert not (home / CANARY).exists()
    finally:
        for path in {*home.iterdir()} - {home / "intact", home / "data"}:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
