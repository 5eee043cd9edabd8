"""The run that another run starts from (`--from`): its architecture and tokenizer, and its weights unless `scratch`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from ..errors import UserError
from ..tasks.base import Task, load_pretrained
from .failures import damage_reported
from .run_folder import RunFolder
from .settings import Settings

__all__ = ["PretrainedRun"]


@dataclass(frozen=True)
class PretrainedRun:
    """A run to start from; `open` makes it.

    Attributes:
        finished: whether its training is complete.
        fingerprints: of its training and validation data.
        scratch: use its architecture and tokenizer, but new weights.
    """

    run: RunFolder
    task: Task[Any, Any]
    settings: Settings
    weights_sha256: str
    finished: bool
    fingerprints: Mapping[str, Any]
    scratch: bool = False

    @classmethod
    def open(cls, path: Path, task: type[Task[Any, Any]], scratch: bool = False) -> PretrainedRun:
        """The run at `path`, as the start of a run of `task`.

        Raises:
            UserError: it does not exist, has no model yet, is damaged, or its model class does not fit.
        """
        run = RunFolder(path.resolve())
        info = run.read_info()
        own = run.read_task(info)
        if own.model_class not in (possible := {task.model_class, *task.pretrained_classes}):
            raise UserError(
                f"{path}: a run of task {own.name}, whose model is a {own.model_class}; task {task.name} can only "
                f"start from {' or '.join(sorted(map(str, possible)))}"
            )
        settings = run.read_settings(info)
        run.check_model()
        with damage_reported(f"{path}: the run"), (run.path / "model.safetensors").open("rb") as weights:
            digest = hashlib.file_digest(weights, "sha256").hexdigest()
        return cls(run, own, settings, digest, run.read_metrics() is not None, info["fingerprints"], scratch)

    @classmethod
    def reopen(cls, record: Mapping[str, Any], task: type[Task[Any, Any]]) -> PretrainedRun:
        """The run of a `record`."""
        pretrained = cls.open(Path(record["path"]), task, record["scratch"])
        if pretrained.weights_sha256 != record["weights_sha256"]:
            raise UserError(f"{pretrained.run.path}: its weights have changed")
        return pretrained

    def record(self) -> dict[str, Any]:
        """The entry `from` of run.yaml."""
        return {
            "path": str(self.run.path),
            "task": self.task.name,
            "weights_sha256": self.weights_sha256,
            "scratch": self.scratch,
        }

    def load_into(self, model: PreTrainedModel) -> str | None:
        """Copy its weights into `model`; returns the result of `load_pretrained`."""
        pretrained, _ = self.run.load(self.task, torch.device("cpu"))
        with damage_reported(f"{self.run.path}: the model"):
            return load_pretrained(model, pretrained)
