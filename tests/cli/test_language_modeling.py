"""Language models from the command line: trained, resumed, compared, scored, asked to go on."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.conftest import SMALL, Call
from synthetic_attention.cli import main
from synthetic_attention.errors import UserError
from synthetic_attention.tasks.continuation import Sampling
from synthetic_attention.training.evaluation import continue_prompt

SETS = [word for setting in SMALL for word in ("--set", setting)]


@pytest.fixture(scope="module")
def data(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that are called like those of the One Billion Word sample."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "train_news.txt").write_bytes((corpus / "train.en").read_bytes())
    (folder / "valid.txt").write_bytes((corpus / "valid.en").read_bytes())
    return folder


@pytest.fixture(scope="module")
def runs(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One run of sentences, one of running text."""
    home, found = tmp_path_factory.mktemp("runs"), {}
    for mode in ("sentences", "blocks"):
        found[mode] = home / mode
        command = ["train", "language-modeling", "--data", data, "--output", found[mode], "--steps", 2, *SETS]
        with pytest.raises(SystemExit) as exit_:
            main([*map(str, command), "--synthesizer", "dense+random", "--set", f"mode={mode}"])
        assert exit_.value.code == 0
    return found


def test_trained_resumed_and_scored(call: Call, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train = ["train", "language-modeling", "--data", data, "--synthesizer", "random+vanilla", *SETS]
    packed = [*train, "--set", "packed=true", "--set", "stream=true", "--steps", 2]
    code, _, err = call(*packed, "--output", run)
    assert code == 0, err
    assert "validation perplexity per word" in err
    code, _, err = call("train", "language-modeling", "--output", run, "--resume", "--steps", 4)
    assert code == 0, err
    metrics = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["steps"] == 4
    code, out, _ = call("evaluate", run, "--split", "valid", "--json")
    results = json.loads(out)
    assert code == 0
    for name in ("loss", "perplexity", "word_perplexity", "bits_per_byte"):
        assert results[name] == pytest.approx(metrics["best"][name], rel=1e-5)
    assert Path(results["predictions"]).read_text(encoding="utf-8").count("\n") == results["examples"] == 6
    assert "perplexity per word" in call("evaluate", run, "--split", "valid")[1]
    code, _, err = call("evaluate", run, "--split", "valid", "--beams", 2)
    assert (code, "got --beams, but task language-modeling generates no text; leave it out" in err) == (1, True)
    code, _, err = call("evaluate", run)
    assert (code, "no file test{.txt}; the files there are: train_news.txt, valid.txt" in err) == (1, True)
    code, out, err = call(*train, "--dry-run", "--steps", 3)
    assert code == 0, err
    assert "sequences" in out
    code, out, err = call("inspect", run, "--split", "valid", "--output", tmp_path / "look")
    assert code == 0, err


def test_compared(call: Call, data: Path, tmp_path: Path) -> None:
    rows = "vanilla,random"
    command = ["compare", "language-modeling", "--data", data, "--synthesizers", rows, "--steps", 2, *SETS]
    code, _, err = call(*command, "--split", "valid", "--output", tmp_path / "table")
    assert code == 0, err
    results = json.loads((tmp_path / "table/results.json").read_text(encoding="utf-8"))
    for row in results["rows"]:
        assert row["tests"]["valid"]["word_perplexity"]["mean"] > 1
    # The smaller perplexity is the better one.
    best = min(results["rows"], key=lambda row: row["tests"]["valid"]["word_perplexity"]["mean"])["row"]
    lines = (tmp_path / "table/table.md").read_text(encoding="utf-8").splitlines()
    column = [cell.strip() for cell in lines[0].split("|")].index("valid perplexity per word")
    for row in ("vanilla", "random"):
        (line,) = (line for line in lines if line.startswith(f"| {row} |"))
        assert line.split("|")[column].strip().startswith("**") == (row == best)


@pytest.mark.parametrize("mode", ["sentences", "blocks"])
def test_a_prompt_is_continued_as_a_line_is(call: Call, runs: dict[str, Path], mode: str) -> None:
    lines = ["one plus two", "", "three"]
    options = ["--max-tokens", 6]
    code, out, err = call("generate", runs[mode], *lines, *options)
    assert code == 0, err
    answers = out.split("\n")
    assert len(answers) == 4
    for line, answer in zip(lines, answers[:3], strict=True):
        code, text, err = call("generate", runs[mode], "--prompt", line, "--temperature", 0, *options)
        assert code == 0, err
        assert text.split("\n")[0] == answer
    # Whatever other lines there are.
    assert call("generate", runs[mode], "three", *options)[1] == f"{answers[2]}\n"


def test_a_seed_makes_it_repeatable(call: Call, runs: dict[str, Path]) -> None:
    def sample(*options: object) -> str:
        code, out, err = call("generate", runs["blocks"], "--prompt", "one\ntwo", *options)
        assert code == 0, err
        return out

    texts = {seed: sample("--seed", seed) for seed in range(3)}
    assert len(set(texts.values())) == 3
    assert sample("--seed", 1) == texts[1]
    assert sample("--seed", 1, "--temperature", 0.1) != texts[1]
    # The most probable of one, however it is drawn.
    greedy = sample("--temperature", 0)
    assert sample("--seed", 5, "--top-k", 1) == sample("--seed", 6, "--top-p", 1e-6) == greedy
    assert sample() != sample()


def test_text_comes_as_it_is_written(runs: dict[str, Path]) -> None:
    for mode in ("sentences", "blocks"):
        parts: list[str] = []
        continue_prompt(runs[mode], "one", parts.append, seed=3)
        assert len(parts) > 3
        assert "</s>" not in "".join(parts)
        assert "<pad>" not in "".join(parts)


def test_what_cannot_be_continued_is_refused(call: Call, runs: dict[str, Path], trained: Path) -> None:
    run = runs["sentences"]
    for arguments, code, message in (
        ((trained, "--prompt", "one"), 1, "a run of task translation continues no --prompt; only runs of language"),
        ((run, "--prompt", "x " * 99), 1, "the prompt has 199 tokens, .* expected at most 63, .* give a shorter one"),
        ((run, "x", "y " * 99), 1, "input, line 2, has .* tokens, .* expected at most 63, .* --on-long truncate"),
        ((run, "--prompt", "caf\udce9"), 1, "an argument is not UTF-8"),
        ((run, "x", "--prompt", "y"), 2, "got TEXT with --prompt; leave one out"),
        ((run, "--prompt", "y", "--beams", 2, "--truncate"), 2, "got --beams, --truncate with --prompt"),
        ((run, "x", "--seed", 1, "--top-k", 3), 2, "got --top-k, --seed without --prompt"),
        ((run, "x", "--on-long", "split"), 1, "got --on-long split; what is continued is cut with --on-long truncate"),
        ((run, "--prompt", "y", "--top-p", 2), 1, "got top-p 2.0; expected more than 0, at most 1"),
    ):
        got, out, err = call("generate", *arguments)
        assert (got, out) == (code, ""), err
        assert err.count("\n") == 1
        assert re.search(message, err), err


def test_prompts_that_leave_room_for_one_token(call: Call, runs: dict[str, Path]) -> None:
    # Three bytes that the training text does not have, so that nothing is merged; </s> begins the text.
    prompt, parts = "§" * 31, list[str]()
    continue_prompt(runs["sentences"], prompt, parts.append, temperature=0)
    with pytest.raises(UserError, match=r"the prompt has 64 tokens, .* expected at most 63"):
        continue_prompt(runs["sentences"], f"{prompt}§"[:31] + "Q", parts.append)
    code, out, err = call("generate", runs["sentences"], "x " * 99, "one", "--on-long", "truncate", "--max-tokens", 3)
    assert (code, out.count("\n"), err) == (0, 2, "1 lines truncated\n")


def test_interrupted_text_ends_with_a_line(call: Call, runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from synthetic_attention.training import evaluation

    def interrupted(run: Path, prompt: str, write: Callable[[str], object], **options: object) -> None:
        write("some")
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluation, "continue_prompt", interrupted)
    assert call("generate", runs["sentences"], "--prompt", "one") == (130, "some\n", "Error: interrupted\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 0}, "got max_tokens=0; expected at least 1"),
        ({"temperature": -1.0}, "got temperature -1.0; expected 0"),
        ({"temperature": float("nan")}, "got temperature nan"),
        ({"top_k": -1}, "got top-k -1; expected 0"),
        ({"top_p": 0.0}, "got top-p 0.0; expected more than 0"),
        ({"seed": -1}, "got seed -1; expected 0"),
    ],
)
def test_sampling_that_cannot_be(options: dict[str, float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Sampling(**options)  # type: ignore[arg-type]
