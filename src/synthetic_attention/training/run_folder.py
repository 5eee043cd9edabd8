"""The folder of a run: the best model as `from_pretrained` reads it, how it was made, what came out.

    config.json, model.safetensors, generation_config.json, tokenizer.json, …   the best model so far
    run.yaml           settings, data, versions, commands: all that is needed to repeat the run
    metrics.json       best and last validation, speed, steps, minutes
    log.jsonl          an object per log entry and per validation
    checkpoints/       the last state of training, for --resume
    evaluation/        what `synthesizer evaluate` wrote

Every file is written beside its place and then moved into it: a run that is killed leaves the old one or the new.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import yaml
from safetensors import SafetensorError
from transformers import PreTrainedTokenizerFast

from ..models import SynthesizerForConditionalGeneration
from ..tasks import UserError

__all__ = ["RunFolder"]

_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


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

    def check_new(self, overwrite: bool) -> None:
        """Refuse a path at which a new run would destroy something.

        Raises:
            UserError: a run is there and `overwrite` is off; or something else is, whatever `overwrite`.
        """
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise UserError(f"{self.path}: exists and is not a folder; choose another --output")
        if (self.path / "run.yaml").is_file():
            if not overwrite:
                raise UserError(f"{self.path}: a run is there; --resume continues it, --overwrite replaces it")
        elif any(self.path.iterdir()):
            raise UserError(f"{self.path}: the folder has files and is no run; choose another --output")

    def create(self, info: Mapping[str, Any], tokenizer: PreTrainedTokenizerFast) -> None:
        """Make the folder anew, with run.yaml and the tokenizer. What `check_new` let pass is replaced."""
        if self.path.exists():
            shutil.rmtree(self.path)
        self.checkpoints.mkdir(parents=True)
        with self._staged() as stage:
            tokenizer.save_pretrained(stage)
        # Last, because it is what makes a folder a run.
        self.write_info(info)

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
            raise UserError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None
        if not isinstance(info, dict) or "settings" not in info:
            raise UserError(f"{path}: not what `synthesizer train` writes")
        return info

    def load_tokenizer(self) -> PreTrainedTokenizerFast:
        """The tokenizer of the run.

        Raises:
            UserError: it is missing or damaged.
        """
        with self._damage_reported():
            return PreTrainedTokenizerFast.from_pretrained(str(self.path))

    def load_model(self, device: torch.device) -> SynthesizerForConditionalGeneration:
        """The best model of the run, in evaluation mode.

        Raises:
            UserError: there is none yet, or it is damaged.
        """
        if not self.has_model:
            raise UserError(f"{self.path}: no model there yet; train it further with --resume")
        with self._damage_reported():
            model = SynthesizerForConditionalGeneration.from_pretrained(str(self.path))
        model.eval()
        # transformers decorates `to`, and its type is lost.
        return cast(Any, model).to(device)

    def save_model(self, model: SynthesizerForConditionalGeneration) -> None:
        """Put `model` in the place of the best one."""
        with self._staged() as stage:
            model.save_pretrained(stage)

    def write_text(self, name: str, text: str) -> Path:
        """Write a file of the run, folders included."""
        with self._staged() as stage:
            path = stage / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return self.path / name

    def write_json(self, name: str, content: Mapping[str, Any]) -> Path:
        """Write a JSON file of the run."""
        return self.write_text(name, json.dumps(content, indent=2, ensure_ascii=False) + "\n")

    def last_checkpoint(self) -> Path | None:
        """The checkpoint of the highest step."""
        found = {int(match[1]): path for path in self._checkpoint_paths() if (match := _CHECKPOINT.match(path.name))}
        return found[max(found)] if found else None

    def commit_checkpoint(self, staged: Path) -> None:
        """Move a complete checkpoint into its place, then remove the others."""
        final = self.checkpoints / staged.name
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
        return [path for path in self.checkpoints.iterdir() if _CHECKPOINT.fullmatch(path.name)]

    @contextmanager
    def _staged(self) -> Iterator[Path]:
        """A folder on the same disk, whose files move into the run at the end, each in one step."""
        with tempfile.TemporaryDirectory(dir=self.path, prefix=".partial-") as name:
            stage = Path(name)
            yield stage
            # The weights last: with them a run has a model, so what they need must be there.
            files = sorted((path for path in stage.rglob("*") if path.is_file()), key=lambda path: path.suffix)
            for path in sorted(files, key=lambda path: path.suffix == ".safetensors"):
                target = self.path / path.relative_to(stage)
                target.parent.mkdir(parents=True, exist_ok=True)
                path.replace(target)

    @contextmanager
    def _damage_reported(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise UserError(f"{self.path}: the run cannot be loaded: {' '.join(str(error).split())}") from error
