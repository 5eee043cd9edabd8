"""--from and --skip-bad-lines on the command line."""

import json
from pathlib import Path

import pytest
import yaml

from cli.conftest import SMALL, Call

SETS = [argument for override in SMALL for argument in ("--set", override)]
TRAINING = [argument for override in SMALL[6:] for argument in ("--set", override)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    sentences = [f"the {number} of {number * number} is here" for number in range(30)]
    for split, lines in (("train", sentences), ("valid", sentences[:10]), ("test", sentences[10:20])):
        rows = [json.dumps({"article": line, "highlights": line[:9]}) for line in lines]
        (folder / f"{split}.jsonl").write_text("\n".join(rows), encoding="utf-8")
    return folder


def test_train_and_compare_from_a_run(call: Call, data: Path, tmp_path: Path) -> None:
    before, after = tmp_path / "pretrain-dense", tmp_path / "after"
    task = ["span-corruption", "--data", data, "--set", "sentinels=10", "--synthesizer", "dense"]
    code, _, err = call("train", *task, "--output", before, "--steps", 2, *SETS, "--set", "vocab_size=320")
    assert code == 0, err
    command = ["train", "summarization", "--data", data, "--from", before, "--output", after]
    code, _, err = call(*command, "--steps", 2, *TRAINING)
    assert code == 0, err
    assert f"weights and tokenizer of {before} (span-corruption)" in err
    info = yaml.safe_load((after / "run.yaml").read_text(encoding="utf-8"))
    assert info["from"]["path"] == str(before)
    assert info["settings"]["synthesizer"] == "dense"
    code, _, err = call(*command[:-1], after, "--resume", "--steps", 4)
    assert code == 0, err
    code, _, err = call("train", "summarization", "--from", after, "--output", after, "--resume", "--steps", 6)
    assert code == 1
    assert "was started with" in err
    code, _, err = call(*command, "--overwrite", "--synthesizer", "vanilla")
    assert (code, err.count("\n")) == (1, 1)
    assert "got synthesizer vanilla, but the run to start from has 'dense'" in err
    code, out, err = call(*command[:6], "--dry-run", *TRAINING)
    assert code == 0, err

    rows = ["--synthesizers", "dense,dense@from=none", "--output", tmp_path / "table", "--beams", 1]
    where = ["--from", tmp_path / "pretrain-{synthesizer}"]
    code, out, err = call("compare", "summarization", "--data", data, *rows, *where, "--steps", 2, *TRAINING)
    assert code == 0, err
    assert "dense@from=none" in out
    assert "rows with @from=none from new weights" in " ".join(out.split())


def test_bad_lines_are_refused_or_counted(call: Call, data: Path, tmp_path: Path) -> None:
    with (data / "train.jsonl").open("a", encoding="utf-8") as file:
        file.write("\nno json\n")
    command = ["train", "summarization", "--data", data, "--output", tmp_path / "run", "--steps", 2, *SETS]
    code, _, err = call(*command)
    assert (code, err.count("\n")) == (1, 1)
    assert "train.jsonl, line 31: not JSON" in err
    code, _, err = call(*command, "--skip-bad-lines")
    assert code == 0, err
    assert "train: 1 malformed lines left out" in err
    assert "dropped" not in err
    assert json.loads((tmp_path / "run/metrics.json").read_text(encoding="utf-8"))["train_lines_skipped"] == 1
    with (data / "test.jsonl").open("a", encoding="utf-8") as file:
        file.write('\n{"article": 1}\n')
    code, out, err = call("evaluate", tmp_path / "run", "--beams", 1)
    assert code == 0, err
    assert out.startswith("test: 10 pairs, 1 beams, length penalty 0.6, 1 malformed lines left out\n")
    assert "examples.md" in out
    assert call("train", "translation", "--data", data, "--skip-bad-lines", "--output", tmp_path / "mt")[0] != 0
