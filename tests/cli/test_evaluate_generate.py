"""synthesizer evaluate and generate: scores, lines in and out, long inputs, sampling."""

import io
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from cli.conftest import Call, check_error, snapshot, succeed, train_run
from documents import blocks

LONG = "one plus two. " * 9 + "three, " * 30


def set_stdin(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_evaluate(call: Call, trained: Path, corpus: Path) -> None:
    out, _ = succeed(call("evaluate", trained, "--data", corpus, "--split", "test", "--num-beams", 2, "--json"))
    assert out.count("\n") == 1
    results = json.loads(out)
    assert (results["examples"], results["num_beams"]) == (6, 2)
    assert {"bleu", "chrf", "bleu_signature", "chrf_signature"} <= set(results)
    out, _ = succeed(call("evaluate", trained, "--num-beams", 1))
    assert all(name in out for name in ("BLEU", "chrF"))


def test_a_line_is_generated_for_each_line(
    call: Call, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, expected, _ = call("generate", trained, "one plus two", "", "three")
    assert expected.count("\n") == 3
    assert expected.split("\n")[1] == ""
    assert call("generate", trained, "one plus two\r\n\r\nthree")[1] == expected
    for arguments, content in (
        (["-"], b"one plus two\n\nthree"),
        ([], b"one plus two\n\nthree\n"),
        ([], b"\xef\xbb\xbfone plus two\r\n\r\nthree\r\n"),
    ):
        set_stdin(monkeypatch, content)
        assert call("generate", trained, *arguments)[1] == expected
    set_stdin(monkeypatch, b"")
    assert call("generate", trained, "-") == (0, "", "")
    set_stdin(monkeypatch, b"one\ntwo\nthr\xff\n")
    check_error(call("generate", trained), "line 3", "0xff")
    # A run can be moved.
    shutil.copytree(trained, tmp_path / "moved")
    assert call("generate", tmp_path / "moved", "one plus two", "", "three")[1] == expected


def test_a_run_of_the_hub(
    call: Call, trained: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(name: str, **_: object) -> str:
        if name == "owner/none":
            raise OSError("404:\nno such repository")
        return str(trained if name == "owner/run" else tmp_path)

    monkeypatch.setattr("synthesizer_lab.training.run_folder.snapshot_download", download)
    assert call("generate", "owner/run", "one plus two") == call("generate", trained, "one plus two")
    before, written = snapshot(trained), (trained / "README.md").stat().st_mtime_ns
    monkeypatch.chdir(tmp_path)
    output, _ = succeed(call("evaluate", "owner/run", "--data", corpus, "--num-beams", 1, "--json"))
    assert json.loads(output)["predictions"].startswith("owner--run/evaluation/")
    assert (trained / "README.md").stat().st_mtime_ns == written
    assert call("inspect", "owner/run", "one plus two")[0] == 0
    check_error(call("convert", "owner/run", "--synthesizer", "vanilla", "--output", "new"), "got 'random+vanilla'")
    assert snapshot(trained) == before
    assert len([*Path("owner--run/evaluation").glob("*.json")]) == 1
    assert Path("owner--run/inspect/index.html").exists()
    check_error(call("generate", "owner/none", "one"), "owner/none: no such folder", "404: no such repository")
    check_error(call("evaluate", "owner/data"), "Error: owner/data: not a run (no run.yaml)")
    Path("owner--run/run.yaml").touch()
    for command in ("evaluate", "inspect"):
        check_error(call(command, "owner/run"), "owner--run: a file or a run")
    shutil.rmtree("owner--run")
    Path("owner--run").touch()
    check_error(call("inspect", "owner/run"), "owner--run: a file or a run")


def test_long_lines(call: Call, trained: Path) -> None:
    for choice in ([], ["--on-long", "error"]):
        check_error(call("generate", trained, LONG, "two", *choice), "1 of 2", "64", "--on-long")
    cut = call("generate", trained, LONG, "--on-long", "truncate")
    assert cut == call("generate", trained, LONG, "--truncate")
    assert "1 lines" in cut[2]


@pytest.mark.parametrize(
    ("arguments", "facts", "code"),
    [
        (["evaluate", "--split", "tset"], ["tset", "train", "valid", "--split"], 1),
        (["evaluate", "--data", "nowhere"], ["nowhere"], 1),
        (["evaluate", "--num-beams", 0], ["--num-beams"], 2),
        (["generate", "caf\udce9"], ["UTF-8"], 1),
    ],
)
def test_wrong_options(call: Call, trained: Path, arguments: list[object], facts: list[str], code: int) -> None:
    before = snapshot(trained)
    command, *options = arguments
    check_error(call(command, trained, *options), *facts, code=code)
    assert snapshot(trained) == before


@pytest.mark.parametrize("command", ["evaluate", "generate"])
def test_a_folder_that_is_no_run(call: Call, corpus: Path, tmp_path: Path, command: str) -> None:
    check_error(call(command, tmp_path / "nowhere"), "nowhere", "synthesizer train")
    check_error(call(command, corpus), corpus, "run.yaml")


@pytest.fixture(scope="module")
def language_models(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of sentences, and one of running text."""
    home, found = tmp_path_factory.mktemp("language-models"), {}
    (home / "data").mkdir()
    (home / "data/train_news.txt").write_bytes((corpus / "train.en").read_bytes())
    (home / "data/valid.txt").write_bytes((corpus / "valid.en").read_bytes())
    for mode in ("sentences", "blocks"):
        options = ("--synthesizer", "dense+random", "--set", f"mode={mode}")
        found[mode] = train_run("language-modeling", home / "data", home / mode, *options)
    return found


@pytest.mark.parametrize("mode", ["sentences", "blocks"])
def test_language_models_are_scored_and_described(
    call: Call, language_models: dict[str, Path], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = language_models[mode]
    out, _ = succeed(call("evaluate", run, "--split", "valid", "--json"))
    best = json.loads((run / "metrics.json").read_text(encoding="utf-8"))["best"]
    for name in ("loss", "perplexity", "word_perplexity", "bits_per_byte"):
        assert json.loads(out)[name] == pytest.approx(best[name], rel=1e-5)
    check_error(call("evaluate", run, "--split", "valid", "--num-beams", 2), "--num-beams", "language-modeling")
    check_error(call("evaluate", run), "test", "train_news.txt, valid.txt")
    assert AutoTokenizer.from_pretrained(run).padding_side == "left"
    monkeypatch.chdir(run)
    exec(dict(blocks(run / "README.md"))["python"], {})


@pytest.mark.parametrize("mode", ["sentences", "blocks"])
def test_each_line_is_continued_as_alone(call: Call, language_models: dict[str, Path], mode: str) -> None:
    run, lines, options = language_models[mode], ["one plus two", "", "three"], ["--max-new-tokens", 6]
    out, _ = succeed(call("generate", run, *lines, *options))
    assert out == "".join(call("generate", run, line, *options)[1] for line in lines)
    assert out == call("generate", run, *lines, *options, "--temperature", 0)[1]


def test_sampling(call: Call, language_models: dict[str, Path], trained: Path) -> None:
    def sample(*options: object, run: Path = language_models["blocks"]) -> str:
        out, _ = succeed(call("generate", run, "one", "two", "--max-new-tokens", 20, *options))
        assert out.count("\n") == 2
        assert "</s>" not in out
        return out

    texts = {seed: sample("--seed", seed) for seed in range(3)}
    assert len(set(texts.values())) == 3
    assert sample("--seed", 1) == texts[1]
    assert sample("--seed", 1, "--temperature", 0.1) != texts[1]
    assert sample("--seed", 5, "--top-k", 1) == sample("--seed", 6, "--top-p", 1e-6) == sample("--temperature", 0)
    assert sample("--top-k", 99) != sample("--top-k", 99)
    assert sample("--seed", 1, run=trained) != sample("--seed", 2, run=trained)


@pytest.mark.parametrize(
    ("arguments", "pattern", "code"),
    [
        (["x", "y " * 99], " 63 .*line 2.*--on-long", 1),
        (["x", "--seed", 1, "--num-beams", 2], "--num-beams, --seed; give options of search or of sampling", 2),
        (["x", "--top-p", 2], "top_p=2.0", 1),
    ],
)
def test_wrong_lines(
    call: Call, language_models: dict[str, Path], arguments: list[object], pattern: str, code: int
) -> None:
    result = call("generate", language_models["sentences"], *arguments)
    check_error(result, code=code)
    assert re.search(pattern, result[2]), result[2]
