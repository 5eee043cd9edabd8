"""The run that another one starts from: its architecture and its tokenizer, and its weights unless they are new."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ..tasks import UserError
from ..tasks.base import Task
from .failures import damage_reported, one_line
from .run_folder import RunFolder
from .settings import Settings

__all__ = ["Source"]


@dataclass(frozen=True)
class Source:
    """A run to start from, opened by `open`.

    Attributes:
        run: its folder.
        task: its task.
        settings: its settings; of these, those of the model are taken over.
        weights_sha256: of its best model, as the file has it.
        finished: whether it was trained to its end.
        recipe: its task with all options, its data and how it was trained, as run.yaml has them.
        scratch: take architecture and tokenizer only, so that a run from new weights can stand beside one from these.
    """

    run: RunFolder
    task: Task[Any, Any]
    settings: Settings
    weights_sha256: str
    finished: bool
    recipe: Mapping[str, Any]
    scratch: bool = False

    @classmethod
    def open(cls, path: Path, task: type[Task[Any, Any]], scratch: bool = False) -> Source:
        """The run at `path`, for a run of `task`.

        Raises:
            UserError: there is none, it has no model yet or is damaged, or its model is of another class.
        """
        run = RunFolder(path.resolve())
        info = run.read_info()
        source = run.read_task(info)
        if source.model_class not in (possible := {task.model_class, *task.starts_from}):
            raise UserError(
                f"{path}: a run of task {source.name}, whose model is a {source.model_class}; task {task.name} can "
                f"start from a {' or a '.join(sorted(possible))} only"
            )
        try:
            settings = Settings.from_dict(info["settings"])
        except UserError as error:
            raise UserError(f"{run.path / 'run.yaml'}: {error}") from error
        if not run.has_model:
            raise UserError(f"{path}: no model there yet; train it further with --resume")
        with damage_reported(f"{path}: the run"), (run.path / "model.safetensors").open("rb") as weights:
            digest = hashlib.file_digest(weights, "sha256").hexdigest()
        recipe = {"task": source.name, **source.lasting_options(), **asdict(settings.training), **info["fingerprints"]}
        return cls(run, source, settings, digest, run.read_metrics() is not None, recipe, scratch)

    @classmethod
    def reopen(cls, record: Mapping[str, Any], task: type[Task[Any, Any]]) -> Source:
        """The run that `record` is of, with the weights that it had then.

        Raises:
            UserError: it is not there any more, or is another.
        """
        source = cls.open(Path(record["path"]), task, record["scratch"])
        if source.weights_sha256 != record["weights_sha256"]:
            raise UserError(f"{source.run.path}: its weights are not those that they were")
        return source

    def record(self) -> dict[str, Any]:
        """What run.yaml keeps of it."""
        return {
            "path": str(self.run.path),
            "task": self.task.name,
            "weights_sha256": self.weights_sha256,
            "scratch": self.scratch,
        }

    def describe(self) -> str:
        """What is taken from it, on a line."""
        taken = "architecture and tokenizer" if self.scratch else "weights and tokenizer"
        return f"{taken} of {self.run.path} ({self.task.name}{'' if self.finished else ', not trained to its end'})"

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Its tokenizer, as its own task uses it.

        Raises:
            UserError: it is missing or damaged.
        """
        return self.run.load_tokenizer()

    def model(self) -> PreTrainedModel:
        """Its best model.

        Raises:
            UserError: its weights are damaged or of another model.
        """
        model, _ = self.run.load(self.task, torch.device("cpu"))
        return model

    def fill(self, task: Task[Any, Any], model: PreTrainedModel, trained: PreTrainedModel) -> str | None:
        """Put the weights of `trained` into `model`, which is one of `task`; says what `Task.fill` does.

        Raises:
            UserError: they do not fit.
        """
        try:
            return task.fill(model, trained)
        except RuntimeError as error:
            raise UserError(f"{self.run.path}: its weights do not fit the model: {one_line(error)}") from error
