"""Whatever a user gets wrong: one clear line, an exit code that is not 0, no traceback, nothing written or lost."""

import errno
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import sacrebleu.tokenizers.tokenizer_ja_mecab


@pytest.fixture
def data(corpus: Path, tmp_path: Path) -> Path:
    """A copy of the corpus, to be spoilt."""
    return Path(shutil.copytree(corpus, tmp_path / "data"))


def _snapshot(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _check(result: tuple[int, str, str], message: str, code: int = 1) -> None:
    actual, out, err = result
    assert (actual, out) == (code, ""), err
    assert err.count("\n") == 1, err
    assert err.startswith("Error: "), err
    assert message in err


def _without_counts(result: tuple[int, str, str]) -> tuple[int, str, str]:
    """How many pairs were read may be said before an error."""
    code, out, err = result
    return code, out, "".join(line for line in err.splitlines(keepends=True) if " pairs, " not in line)


def _spoil(name: str, content: bytes | None) -> Callable[[Path], object]:
    def spoil(data: Path) -> None:
        if content is None:
            (data / name).unlink()
        else:
            (data / name).write_bytes(content)

    return spoil


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (shutil.rmtree, "no such folder of data"),
        (_spoil("train.en", None), "train.en: no such file"),
        (_spoil("valid.de", None), "valid.de: no such file"),
        (_spoil("train.en", b""), "train.en: the file is empty"),
        (_spoil("valid.en", b"\n\n\n\n\n\n"), "valid.en: the file is empty"),
        (_spoil("train.de", b"eins\nzwei\n"), "train.de has 2; line i"),
        (_spoil("valid.de", b"eins\nzw\xe4i\n"), "valid.de, line 2: byte 0xe4 at position 3 is not UTF-8"),
        (_spoil("valid.en", b"one\n" * 5 + b"one " * 99 + b"\n"), "valid.en: 1 of 6 lines are longer"),
    ],
)
def test_spoilt_data(
    call, train: list[object], data: Path, tmp_path: Path, spoil: Callable[[Path], object], message: str
) -> None:
    spoil(data)
    train[train.index("--data") + 1] = data
    before = _snapshot(tmp_path)
    _check(_without_counts(call(*train)), message)
    assert _snapshot(tmp_path) == before
    assert not (tmp_path / "run").exists()


def test_long_pairs_are_dropped_or_truncated_if_asked(call, train: list[object], data: Path) -> None:
    with (data / "train.en").open("a") as en, (data / "train.de").open("a") as de:
        en.write("one " * 99 + "\n")
        de.write("eins\n")
    train[train.index("--data") + 1] = data
    _check(call(*train), "1 of 61 lines are longer than the maximum of 64 tokens (the first is line 61")
    code, _, err = call(*train, "--drop-long")
    assert code == 0
    assert "train: 1 pairs dropped" in err
    code, _, err = call(*train, "--truncate", "--overwrite")
    assert code == 0
    assert "train: 1 pairs truncated to 64 tokens" in err


@pytest.mark.parametrize(
    ("extra", "message", "code"),
    [
        (["--synthesizer", "randm"], "unknown synthesizer 'randm'", 1),
        (["--synthesizer", ""], "unknown synthesizer", 1),
        (["--synthesizer", "[dense, dense]"], "2 synthesizers for the 1 layers", 1),
        (
            ["--preset", "huge"],
            "unknown preset 'huge'; expected one of: base, demo, small, t5-base, t5-small, t5-tiny, tiny",
            1,
        ),
        (["--device", "tpu0"], "got device 'tpu0'; expected one of: cpu", 1),
        (["--dtype", "float16"], "got dtype='float16'; expected one of: float32, bfloat16", 1),
        (["--dtype", "float32", "--set", "dtype=float32"], "got both --dtype and --set dtype=…", 1),
        (["--resume", "--dry-run"], "exclude each other", 2),
        (["--set", "nonsense=1"], "unknown setting 'nonsense'", 1),
        (["--set", "random.size=1"], "size", 1),
        (["--set", "d_model=17"], "d_model=17", 1),
        (["--set", "d_model"], "expected key=value", 1),
        (["--minutes", "-3"], "minutes=-3.0; expected more than 0", 1),
        (["--steps", "0"], "steps=0; expected more than 0", 1),
        (["--steps", "many"], "Invalid value for '--steps'", 2),
        (["--seed", "-1"], "got seed -1", 1),
        (["--nonsense"], "--nonsense", 2),
        (["--resume", "--overwrite"], "exclude each other", 2),
        (["--truncate", "--drop-long"], "exclude each other", 2),
        (["--target", "en"], "two different ones", 1),
        (["--target", "fr"], "train.fr: no such file", 1),
        (["--target", "**"], "got language '**'; expected the suffix of its files", 1),
        (["--set", "steps=9"], "got both --steps and --set steps=…", 1),
        (["--resume"], "no such folder; expected a folder made by", 1),
    ],
)
def test_wrong_options(call, train: list[object], tmp_path: Path, extra: list[str], message: str, code: int) -> None:
    _check(call(*train, *extra), message, code)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--synthesizer", "random+dense+vanilla", "--set", "mixture.gate=sigmoid"], "sigmoid"),
        (
            ["--synthesizer", "factorized_dense", "--set", "factorized_dense.a=2", "--set", "factorized_dense.b=2"],
            "factorized_dense",
        ),
        (["--synthesizer", "factorized_dense", "--set", "factorized_dense.a=2.5"], "a=2.5"),
        (["--set", "max_position_embeddings=1000000"], "the model cannot be built"),
        (["--target", "ja"], "pip install -e '.[ja]'"),
    ],
)
def test_what_cannot_be_trained_does_not_cost_the_run_that_is_there(
    call,
    train: list[object],
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    extra: list[str],
    message: str,
) -> None:
    monkeypatch.setattr(sacrebleu.tokenizers.tokenizer_ja_mecab, "MeCab", None)
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    before = _snapshot(run)
    _check(_without_counts(call(*train, "--overwrite", *extra)), message)
    assert _snapshot(run) == before
    assert [*tmp_path.iterdir()] == [run]


def test_paths_that_cannot_be(call, train: list[object], data: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine", encoding="utf-8")
    where = train.index("--output") + 1
    for output in (file, file / "run"):
        train[where] = output
        _check(call(*train), "file: exists and is not a folder; choose another --output")
    train[where] = tmp_path / "run"
    train[train.index("--data") + 1] = data / "train.en"
    _check(call(*train), "train.en: a file; expected the folder")
    assert file.read_text(encoding="utf-8") == "mine"


def test_an_output_where_no_folder_can_be_made(
    call, train: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), "a path of ours")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", refuse)
    run = tmp_path / "new"
    train[train.index("--output") + 1] = run
    code, out, err = call(*train)
    assert (code, out) == (1, "")
    problem = "cannot be made there (Read-only file system); choose another --output"
    assert err.splitlines()[-1] == f"Error: {run}: {problem}"


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_an_output_that_cannot_be_written(call, train: list[object], tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        _check(call(*train), "no permission to write there; choose another --output")
    finally:
        tmp_path.chmod(0o700)


def test_unknown_tasks_and_commands_list_the_known(call, train: list[object]) -> None:
    train[1] = "translate"
    _check(call(*train), "unknown task 'translate'; expected one of: ")
    _check(call("trane"), "trane", 2)
    _check(call("train", "summarization", "--output", "run"), "--data is missing", 2)
    _check(call("train", "translation", "--data", "data"), "--output is missing", 2)
    _check(call("train"), "Missing", 2)


@pytest.mark.parametrize("command", ["evaluate", "generate"])
def test_a_folder_that_is_no_run(call, corpus: Path, trained: Path, tmp_path: Path, command: str) -> None:
    _check(
        call(command, tmp_path / "nowhere"), "nowhere: no such folder; expected a folder made by `synthesizer train`"
    )
    _check(call(command, corpus), "no run (it has no run.yaml)")
    copy = Path(shutil.copytree(trained, tmp_path / "copy"))
    (copy / "run.yaml").write_text("[", encoding="utf-8")
    _check(call(command, copy), "run.yaml: cannot be read")
    (copy / "run.yaml").write_text("a: 1", encoding="utf-8")
    _check(call(command, copy), "not what `synthesizer train` writes")


def test_what_is_there_stays(call, train: list[object], tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "thesis.tex").write_text("years", encoding="utf-8")
    for extra in ([], ["--overwrite"]):
        _check(call(*train, *extra), "has files and is no run; choose another --output")
    (run / "thesis.tex").unlink()
    assert call(*train)[0] == 0
    before = _snapshot(run)
    _check(call(*train), "a run is there; --resume continues it, --overwrite replaces it")
    # An error in the new command must not cost the old run.
    _check(call(*train, "--overwrite", "--synthesizer", "randm"), "unknown synthesizer")
    _check(call(*train, "--overwrite", "--data", tmp_path / "nowhere"), "no such folder of data")
    assert _snapshot(run) == before


def test_wrong_options_of_evaluate_and_generate(
    call, trained: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _snapshot(trained)
    _check(call("evaluate", trained, "--split", "tset"), "the splits there are: test, test_templates, train, valid")
    _check(call("evaluate", trained, "--data", corpus / "nowhere"), "no such folder of data")
    _check(call("evaluate", trained, "--length-penalty", "nan"), "got length penalty nan")
    _check(call("evaluate", trained, "--beams", 0), "--beams", 2)
    _check(call("evaluate", trained, "--dtype", "int8"), "got dtype 'int8'; expected one of: float32, bfloat16")
    _check(call("generate", trained, "one", "--device", "hpu:7"), "which this machine does not have for PyTorch")
    _check(call("generate", trained, "--beams", 0), "--beams", 2)
    _check(call("generate", trained, "caf\udce9"), "not UTF-8")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntw\xff\n")))
    _check(call("generate", trained, "-"), "standard input, line 2: byte 0xff at position 3 is not UTF-8")
    assert _snapshot(trained) == before


def test_data_without_the_split_and_data_that_changed(call, trained: Path, data: Path, tmp_path: Path) -> None:
    for path in data.glob("test*"):
        path.unlink()
    _check(call("evaluate", trained, "--data", data), "no files test{.en | .de}; the splits there are: train, valid")
    copy = Path(shutil.copytree(trained, tmp_path / "copy"))
    before = _snapshot(copy)
    resume = ("train", "translation", "--output", copy, "--resume", "--steps", 9, "--data", data)
    with (data / "train.en").open("r+") as file:
        file.write("x")
    _check(call(*resume), "the train data is not what")
    shutil.rmtree(data)
    _check(call(*resume), "no such folder of data")
    assert _snapshot(copy) == before
