"""The folder of a run: the best model as `from_pretrained` reads it, how it was made, what came out.

    config.json, model.safetensors, generation_config.json, tokenizer.json, …   the best model so far
    run.yaml           settings, data, versions, commands: all that is needed to repeat the run
    metrics.json       best and last validation, speed, steps, minutes
    log.jsonl          an object per log entry and per validation
    checkpoints/       the last state of training, for --resume
    evaluation/        what `synthesizer evaluate` wrote
    .lock              held while a process trains the run

Every file is written beside its place and then moved into it: a run that is killed leaves the old one or the new.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import yaml
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ..data.hub import is_hub_name
from ..models import SynthesizerConfig
from ..tasks import UserError, get_task
from ..tasks.base import Task
from .averaging import carry_snapshots
from .checkpoint import Checkpoint, checkpoint_step
from .failures import damage_reported, one_line
from .locks import hold

__all__ = ["RunFolder", "data_path", "kept_path"]

# What run.yaml has to have for a run to be used.
_INFO: dict[str, type] = {
    **dict.fromkeys(("task", "data"), str),
    **dict.fromkeys(("options", "settings", "fingerprints"), dict),
    "commands": list,
}
# And of the run that it started from, if there is one.
_FROM = dict.fromkeys(("path", "weights_sha256", "scratch"))
_PARTIAL = ".partial"


def data_path(info: Mapping[str, Any], data: Path | None) -> Path:
    """Where the data of a run is: `data`, or else where it was when the run was trained.

    Raises:
        UserError: it is not there any more.
    """
    path = data or Path(info["data"])
    if data is None and not is_hub_name(path) and not path.exists():
        raise UserError(f"{path}: the data of the run is not there any more; pass --data to say where it is")
    return path


def kept_path(data: Path) -> str:
    """The data of a run, as run.yaml keeps it: from wherever it is read, it means the same."""
    return str(data if is_hub_name(data) else data.resolve())


@dataclass(frozen=True)
class RunFolder:
    """A run at `path`. Nothing is read or made until a method is called."""

    path: Path

    @property
    def log(self) -> Path:
        """log.jsonl."""
        return self.path / "log.jsonl"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def has_model(self) -> bool:
        """Whether there is a best model yet."""
        return (self.path / "model.safetensors").is_file()

    def read_metrics(self) -> dict[str, Any] | None:
        """metrics.json of a run that was trained to its end; None of any other, or where it cannot be read."""
        try:
            metrics = json.loads((self.path / "metrics.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, UnicodeDecodeError, json.JSONDecodeError):
            return None
        return metrics if isinstance(metrics, dict) and metrics.get("finished") is True else None

    def check_new(self, overwrite: bool) -> None:
        """Refuse a path at which a new run would destroy something.

        Raises:
            UserError: a run is there and `overwrite` is off; or something else is, whatever `overwrite`.
        """
        nearest = next(path for path in (self.path, *self.path.absolute().parents) if path.exists())
        if not nearest.is_dir():
            raise UserError(f"{nearest}: exists and is not a folder; choose another --output")
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise UserError(f"{nearest}: no permission to write there; choose another --output")
        if nearest != self.path:
            return
        if (self.path / "run.yaml").is_file():
            if not overwrite:
                raise UserError(f"{self.path}: a run is there; --resume continues it, --overwrite replaces it")
        elif not self._is_empty():
            raise UserError(f"{self.path}: the folder has files and is no run; choose another --output")

    @contextmanager
    def created(self, info: Mapping[str, Any], tokenizer: PreTrainedTokenizerFast, overwrite: bool) -> Iterator[None]:
        """Make the folder anew, with run.yaml and the tokenizer, and keep it for this process inside.

        The run that it replaces goes last.

        Raises:
            UserError: what `check_new` refuses; something may have come there since it was asked.
        """
        # A folder that is there and empty stays, and is filled: it may be a mount or the one that we are in.
        keep = self.path.is_dir() and self._is_empty()
        home = self.path if keep else self.path.parent
        with ExitStack() as held:
            with self._stage_in(home) as name:
                new, old = RunFolder(Path(name) / "new"), Path(name) / "old"
                new.checkpoints.mkdir(parents=True)
                tokenizer.save_pretrained(new.path)
                new.write_info(info)
                # It is ours before it is in its place, and goes on being ours there.
                held.enter_context(self._locked(new.path))
                self.check_new(overwrite and not keep)
                if keep:
                    # run.yaml first: it makes the folder a run, which may be overwritten.
                    for path in sorted(new.path.iterdir(), key=lambda path: path.name != "run.yaml"):
                        path.rename(self.path / path.name)
                elif self.path.exists():
                    # Till the end: releases of filelock that remove the file of a lock would remove the new one.
                    held.enter_context(self.alone())
                    self._replace(new.path, old)
                else:
                    new.path.rename(self.path)
            yield

    @contextmanager
    def _stage_in(self, home: Path) -> Iterator[str]:
        """A folder in `home`, to make the run in; removed at the end."""
        try:
            home.mkdir(parents=True, exist_ok=True)
            stage = tempfile.TemporaryDirectory(dir=home, prefix=f"{_PARTIAL}-{self.path.name}-")
        except OSError as error:
            problem = error.strerror or one_line(error)
            raise UserError(f"{self.path}: cannot be made there ({problem}); choose another --output") from error
        with stage as name:
            yield name

    def _replace(self, new: Path, old: Path) -> None:
        """Move the folder to `old` and `new` into its place, or leave it where it is."""
        try:
            self.path.rename(old)
            new.rename(self.path)
        except BaseException:
            if old.exists() and not self.path.exists():
                old.rename(self.path)
            raise

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes from training this run meanwhile; the system lets go of it with the process.

        Raises:
            UserError: one is at it.
        """
        with self._locked(self.path):
            yield

    def _locked(self, place: Path) -> AbstractContextManager[object]:
        """The lock of this run, held; `place` is where its folder is at the moment."""
        return hold(
            place, f"{self.path}: another process is training this run; wait for its end, or choose another --output"
        )

    def remove_partial(self) -> None:
        """Remove what a kill in the middle of writing has left."""
        for path in (*self.path.glob(f"{_PARTIAL}*"), *self.checkpoints.glob(f"{_PARTIAL}*")):
            shutil.rmtree(path)

    def _is_empty(self) -> bool:
        return all(path.name.startswith(_PARTIAL) for path in self.path.iterdir())

    def write_info(self, info: Mapping[str, Any]) -> None:
        """Write run.yaml."""
        text = yaml.safe_dump(dict(info), sort_keys=False, allow_unicode=True, width=120)
        self.write_text("run.yaml", text)

    def read_info(self) -> dict[str, Any]:
        """What run.yaml has.

        Raises:
            UserError: there is no run, or its run.yaml cannot be read.
        """
        path = self.path / "run.yaml"
        if not path.is_file():
            what = "no such folder" if not self.path.exists() else "no run (it has no run.yaml)"
            raise UserError(f"{self.path}: {what}; expected a folder made by `synthesizer train`")
        try:
            info = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: cannot be read: {one_line(error)}") from None
        entries = _as_dict(info)
        wrong = [name for name, kind in _INFO.items() if not isinstance(entries.get(name), kind)]
        if not wrong:
            wrong = [f"settings.{name}" for name in ("synthesizer", "training") if not entries["settings"].get(name)]
            wrong += [f"fingerprints.{name}" for name in ("train", "valid") if name not in entries["fingerprints"]]
            wrong += [f"from.{name}" for name in _FROM if name not in _as_dict(entries.get("from", _FROM))]
        if wrong:
            raise UserError(f"{path}: not what `synthesizer train` writes: no valid {', '.join(wrong)}")
        return entries

    def read_task(self, info: Mapping[str, Any]) -> Task[Any, Any]:
        """The task that `info`, which `read_info` gave, is about.

        Raises:
            UserError: there is no such task, or it has other options.
        """
        try:
            return get_task(info["task"]).from_options(info["options"])
        except UserError as error:
            raise UserError(f"{self.path / 'run.yaml'}: {error}") from error

    def load_tokenizer(self) -> PreTrainedTokenizerFast:
        """The tokenizer of the run.

        Raises:
            UserError: it is missing or damaged.
        """
        with damage_reported(f"{self.path}: the run"):
            return PreTrainedTokenizerFast.from_pretrained(str(self.path))

    def load(
        self, task: Task[Any, Any], device: torch.device, dtype: torch.dtype = torch.float32
    ) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
        """The best model of the run, in evaluation mode, and the tokenizer.

        Raises:
            UserError: there is no model yet, or something is damaged or of another model.
        """
        if not self.has_model:
            raise UserError(f"{self.path}: no model there yet; train it further with --resume")
        tokenizer = self.load_tokenizer()
        with damage_reported(f"{self.path}: the run"):
            kind = json.loads((self.path / "config.json").read_text(encoding="utf-8")).get("model_type")
            if kind != SynthesizerConfig.model_type:
                raise ValueError(f"config.json has model_type {kind!r}; expected {SynthesizerConfig.model_type!r}")
            model, found = cast(Any, task.model_type()).from_pretrained(str(self.path), output_loading_info=True)
            # transformers would draw missing weights at random, and say so in a hint.
            for problem in ("missing_keys", "unexpected_keys"):
                if found[problem]:
                    names = ", ".join(sorted(found[problem])[:3])
                    raise ValueError(f"model.safetensors has {problem.replace('_', ' ')}: {names}, …")
            if len(tokenizer) > model.config.vocab_size:
                raise ValueError(f"tokenizer.json has {len(tokenizer)} pieces, the model {model.config.vocab_size}")
        model.eval()
        return model.to(device, dtype), tokenizer

    def save_model(self, model: PreTrainedModel) -> None:
        """Put `model` in the place of the best one."""
        with self._staged() as stage:
            model.save_pretrained(stage)
            # safetensors lets nobody but its owner read them.
            for path in stage.glob("*.safetensors"):
                shutil.copymode(stage / "config.json", path)

    def write_text(self, name: str, text: str) -> Path:
        """Write a file of the run, folders included."""
        with self._staged() as stage:
            path = stage / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return self.path / name

    def write_json(self, name: str, content: Mapping[str, Any]) -> Path:
        """Write a JSON file of the run."""
        return self.write_text(name, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")

    def last_checkpoint(self) -> Checkpoint | None:
        """The checkpoint of the highest step.

        Raises:
            UserError: it is damaged.
        """
        paths = self._checkpoint_paths()
        return Checkpoint.open(max(paths, key=_step)) if paths else None

    def commit_checkpoint(self, staged: Path, snapshots: Sequence[int] = ()) -> None:
        """Move a complete checkpoint into its place, with the weights of `snapshots`; then remove the one before."""
        final = self.checkpoints / staged.name
        if before := self._checkpoint_paths():
            carry_snapshots(max(before, key=_step), staged, snapshots)
        if final.exists():
            shutil.rmtree(final)
        staged.replace(final)
        staged.parent.rmdir()
        for path in self._checkpoint_paths():
            if path != final:
                shutil.rmtree(path)

    def _checkpoint_paths(self) -> list[Path]:
        if not self.checkpoints.is_dir():
            return []
        return [path for path in self.checkpoints.iterdir() if checkpoint_step(path) is not None]

    @contextmanager
    def _staged(self) -> Iterator[Path]:
        """A folder on the same disk, whose files move into the run at the end, each in one step."""
        with tempfile.TemporaryDirectory(dir=self.path, prefix=f"{_PARTIAL}-") as name:
            stage = Path(name)
            yield stage
            # The weights last: with them a run has a model, so what they need must be there.
            files = sorted((path for path in stage.rglob("*") if path.is_file()), key=lambda path: path.suffix)
            for path in sorted(files, key=lambda path: path.suffix == ".safetensors"):
                target = self.path / path.relative_to(stage)
                target.parent.mkdir(parents=True, exist_ok=True)
                path.replace(target)


def _as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _step(checkpoint: Path) -> int:
    return checkpoint_step(checkpoint) or 0
