"""The folder of a run: made, replaced, or refused without harm."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from synthesizer_lab.staging import LOCK, lock_file
from synthesizer_lab.tasks import UserError
from synthesizer_lab.training.run import resume_run
from synthesizer_lab.training.run_folder import RunFolder
from training.runs import Kill, Small, full_disk, generate_lines, silent, snapshot, start


def test_what_is_there_is_not_overwritten_unasked(corpus: Path, tmp_path: Path, small: Small) -> None:
    run, settings = tmp_path / "run", small("max_steps=1")
    start(corpus, run, settings)
    before = (run / "model.safetensors").read_bytes()
    with pytest.raises(UserError, match="--resume continues it, --overwrite replaces it"):
        start(corpus, run, settings)
    with pytest.raises(UserError, match="no such folder"):
        start(tmp_path / "nowhere", run, settings, overwrite=True)
    assert (run / "model.safetensors").read_bytes() == before
    start(corpus, run, small("max_steps=1", seed=9), overwrite=True)
    assert (run / "model.safetensors").read_bytes() != before
    for output in (corpus, corpus.parent):
        with pytest.raises(UserError, match="has files and is not a run"):
            start(corpus, output, settings, overwrite=True)
    with pytest.raises(UserError, match="not a folder"):
        start(corpus, run / "run.yaml", settings, overwrite=True)


def test_a_run_that_was_killed_as_it_began_starts_again(corpus: Path, tmp_path: Path, small: Small) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/tokenizer.json").write_text("{", encoding="utf-8")
    # Perhaps a user's.
    with pytest.raises(UserError, match="has files and is not a run"):
        start(corpus, tmp_path / "run", small("max_steps=1"))
    (tmp_path / "run" / LOCK).touch()
    start(corpus, tmp_path / "run", small("max_steps=1"))
    assert (tmp_path / "run/model.safetensors").exists()


def test_weights_that_are_not_finite_are_refused(corpus: Path, tmp_path: Path, small: Small) -> None:
    start(corpus, run := tmp_path / "run", small("max_steps=1"))
    weights = {name: weight * torch.nan for name, weight in load_file(run / "model.safetensors").items()}
    save_file(weights, run / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"model\.safetensors has weights that are not finite: "):
        generate_lines(run, ["one"])


def test_an_empty_folder_is_filled_and_a_link_to_it_stays(corpus: Path, tmp_path: Path, small: Small) -> None:
    (tmp_path / "empty").mkdir()
    (output := tmp_path / "link").symlink_to(tmp_path / "empty")
    for _ in range(2):
        start(corpus, output, small("max_steps=1"), overwrite=True)
        assert output.is_symlink()
        assert (tmp_path / "empty/model.safetensors").exists()


def test_data_inside_the_run_that_is_replaced_is_refused(corpus: Path, tmp_path: Path, small: Small) -> None:
    run, settings = tmp_path / "run", small("max_steps=1")
    start(corpus, run, settings)
    (run / "data").mkdir()
    for path in corpus.iterdir():
        (run / "data" / path.name).write_bytes(path.read_bytes())
    before = snapshot(tmp_path)
    with pytest.raises(UserError, match="the data is inside"):
        start(run / "data", run, settings, overwrite=True)
    assert snapshot(tmp_path) == before
    (run / "data").rename(tmp_path / "data")
    (run / "link").symlink_to(tmp_path)
    RunFolder(run).check_new(overwrite=True)
    (run / "data").mkdir()
    (run / "data/run.yaml").touch()
    with pytest.raises(UserError, match="a run inside"):
        start(corpus, run, settings, overwrite=True)


def test_nobody_else_trains_the_same_run(corpus: Path, tmp_path: Path, small: Small) -> None:
    run, refused = tmp_path / "run", []

    def try_too() -> None:
        for attempt in (lambda: resume_run(run, report=silent), lambda: start(corpus, run, small(), overwrite=True)):
            with pytest.raises(UserError, match="another process is training this run") as error:
                attempt()
            refused.append(error.value)

    metrics = start(corpus, run, small("max_steps=6"), callbacks=[Kill(6, try_too)]).metrics
    assert len(refused) == 2
    assert (metrics["steps"], metrics["finished"]) == (6, True)
    # Whoever was at it has let go.
    assert resume_run(run, max_steps=8, report=silent).metrics["steps"] == 8


@pytest.mark.parametrize("exists", [False, True])
def test_a_full_disk_leaves_what_is_there(corpus: Path, tmp_path: Path, small: Small, exists: bool) -> None:
    run, settings = tmp_path / "run", small("max_steps=1")
    if exists:
        start(corpus, run, settings)
    before = snapshot(tmp_path)
    # Of run.yaml, and of the tokenizer.
    for size in (100, 3000):
        with full_disk(size), pytest.raises(UserError, match=r"run cannot be written: .*File too large.*; ") as error:
            start(corpus, run, settings, overwrite=True)
        assert "\n" not in str(error.value)
        assert snapshot(tmp_path) == before if exists else not RunFolder(run).content()


def test_the_next_start_removes_what_killed_ones_left(corpus: Path, tmp_path: Path, small: Small) -> None:
    run = tmp_path / "run"
    dead, alive = (run / f".partial-{name}" for name in ("abcdefgh", "12345678"))
    for path in (dead, alive):
        (path / "new").mkdir(parents=True)
        (path / LOCK).touch()
    with lock_file(alive / LOCK):
        start(corpus, run, small("max_steps=1"))
    assert [*run.glob(".partial-*")] == [alive]
