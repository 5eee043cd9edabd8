"""The folder of a run: made, replaced, or refused without harm."""

import errno
import os
import re
import tempfile
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from transformers import PreTrainedTokenizerFast

from synthesizer_lab.tasks import UserError
from synthesizer_lab.training.run import resume_run
from synthesizer_lab.training.run_folder import RunFolder
from synthetic_attention.staging import LOCK, FileLock, lock_file, remove_left, staged
from training.runs import Kill, Small, generate_lines, silent, snapshot, start


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


def test_a_run_that_came_meanwhile_is_not_replaced(corpus: Path, tmp_path: Path, small: Small) -> None:
    run, settings = tmp_path / "run", small("max_steps=1")
    start(corpus, tmp_path / "other", settings)

    def come(line: str) -> None:
        if not run.exists():
            (tmp_path / "other").rename(run)

    before = snapshot(tmp_path / "other")
    with pytest.raises(UserError, match="--resume continues it"):
        start(corpus, run, settings, report=come)
    assert [*tmp_path.iterdir()] == [run]
    assert snapshot(run) == before


def test_files_that_came_meanwhile_are_not_replaced(tmp_path: Path) -> None:
    folder, file = RunFolder(tmp_path / "run"), tmp_path / "run/report.json"
    writing = folder.written()
    writing.__enter__().write_json("report.json", {})
    folder.path.mkdir()
    file.write_text("mine")
    with pytest.raises(UserError, match="run: exists"):
        writing.__exit__(None, None, None)
    assert file.read_text() == "mine"
    assert [*tmp_path.iterdir()] == [folder.path]


@pytest.mark.parametrize("link", [False, True])
def test_an_empty_folder_is_filled_not_replaced(corpus: Path, tmp_path: Path, small: Small, link: bool) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    before, output = folder.stat().st_ino, folder
    if link:
        output = tmp_path / "link"
        output.symlink_to(folder)
    start(corpus, output, small("max_steps=1"))
    assert folder.stat().st_ino == before
    assert output.is_symlink() == link
    assert generate_lines(output, ["one"], num_beams=1)[1] == 0
    # A link stays when the run that it leads to is replaced.
    start(corpus, output, small("max_steps=1"), overwrite=True)
    assert output.is_symlink() == link


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


def test_nobody_else_trains_the_same_run(corpus: Path, tmp_path: Path, small: Small) -> None:
    run, refused = tmp_path / "run", []

    def try_too() -> None:
        again = partial(start, tmp_path / "nowhere", run, small(), overwrite=True)
        for attempt in (lambda: resume_run(run, report=silent), again):
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
    for owner, name, error in (
        (PreTrainedTokenizerFast, "save_pretrained", Exception("No space left on device (os error 28)")),
        (RunFolder, "write_yaml", OSError(errno.EFBIG, "File too large")),
        (tempfile, "mkdtemp", OSError(errno.ENOSPC, "No space left on device")),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, MagicMock(side_effect=error))
            with pytest.raises(UserError, match=rf"run cannot be written: .*{re.escape(str(error))}; "):
                start(corpus, run, settings, overwrite=True)
        assert snapshot(tmp_path) == before


def test_the_next_start_removes_what_killed_ones_left(corpus: Path, tmp_path: Path, small: Small) -> None:
    run, settings = tmp_path / "run", small("max_steps=1")
    dead, alive, other = (tmp_path / f".partial-{name}" for name in ("run-abcdefgh", "run-12345678", "runs-abcdefgh"))
    for path in (dead, alive, other):
        (path / "new").mkdir(parents=True)
        (path / LOCK).touch()
    # Somebody else's.
    (tmp_path / ".partial-run-20240101").mkdir()
    with lock_file(alive / LOCK):
        start(corpus, run, settings)
    assert {*tmp_path.iterdir()} == {run, alive, other, tmp_path / ".partial-run-20240101"}
    # Killed between the two steps of --overwrite: the old run is back.
    alive.rename(dead)
    run.rename(dead / "old")
    with pytest.raises(UserError, match="--resume continues it"):
        start(corpus, run, settings)
    assert {*tmp_path.iterdir()} == {run, other, tmp_path / ".partial-run-20240101"}


def test_only_file_systems_without_locks_go_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (errno.ENOLCK, errno.EACCES):
        error = OSError(number, os.strerror(number))
        monkeypatch.setattr(FileLock, "acquire", MagicMock(side_effect=error))
        with pytest.raises(PermissionError) if number == errno.EACCES else nullcontext():
            lock_file(tmp_path / LOCK)


def test_a_living_process_keeps_its_temporary_folder(tmp_path: Path) -> None:
    (tmp_path / ".partial-12345678/new").mkdir(parents=True)
    (tmp_path / ".partial-12345678" / LOCK).touch()
    with staged(tmp_path, ".partial-") as folder:
        remove_left(tmp_path, ".partial-*")
        assert [*tmp_path.iterdir()] == [folder.parent]
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("error", [FileNotFoundError, FileExistsError])
def test_a_folder_that_is_taken_before_its_lock_comes_back(
    error: type[OSError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquire, calls = FileLock.acquire, []

    def taken_once(self: FileLock, **options: float) -> object:
        calls.append(self.lock_file)
        if len(calls) == 1:
            Path(self.lock_file).parent.rmdir()
            raise error
        return acquire(self, **options)

    monkeypatch.setattr(FileLock, "acquire", taken_once)
    with staged(tmp_path, ".partial-") as folder:
        assert {path.name for path in folder.parent.iterdir()} == {".lock", "new"}
    assert len(calls) == 2
