"""The folder of a run.

    config.json, model.safetensors, generation_config.json, tokenizer.json, …   the best model, for `from_pretrained`
    run.yaml           settings, data, versions, commands: everything to repeat the run
    metrics.json       best and last validation, speed, steps, minutes
    README.md          model card: scores, data, command, how to load
    log.jsonl          one object per log entry and per validation
    checkpoints/       the last state of training, for --resume
    evaluation/        results of `synthesizer evaluate`
    .lock              held while a process trains the run

Every file is written elsewhere and then moved: a run that is killed has the old file or the new one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import yaml
from huggingface_hub import snapshot_download
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ..data.source import is_hub_name
from ..errors import UserError, damage_reported, one_line
from ..staging import LOCK, lock_file, staged
from ..tasks import FORMER_OPTIONS, make_task
from ..tasks.base import Task, load_pretrained, possible_starts, reset_generation
from .settings import Settings, load_yaml

# The entries of config.json that make transformers load kernels from the hub, other weights, or other libraries.
_FOREIGN = (
    *("attn_implementation", "_attn_implementation", "experts_implementation", "_experts_implementation"),
    *("quantization_config", "transformers_weights"),
)
# The entries of run.yaml that every run has.
_INFO = ("task", "data", "options", "fingerprints", "commands", "settings")
_PARTIAL = ".partial-"
# The files that a new run gets before its run.yaml.
_FIRST = {"tokenizer.json", "tokenizer_config.json"}


def data_path(info: Mapping[str, Any], data: Path | None) -> Path:
    """The data of a run: `data`, by default the data that it was trained on."""
    path = data or Path(info["data"])
    if data is None and not is_hub_name(path) and not path.exists():
        raise UserError(f"{path}: the data of the run does not exist; pass --data")
    return path


def portable_path(data: Path) -> str:
    """The data as run.yaml has it: independent of the current directory."""
    return str(data if is_hub_name(data) else data.resolve())


@dataclass(frozen=True)
class RunFolder:
    """A run at `path`. Only its methods read and write; they raise UserError for files that are missing or damaged."""

    path: Path
    hub_name: str = ""

    @classmethod
    def find(cls, name: str | Path) -> RunFolder:
        """The run in a folder; if there is none, and the name has the form OWNER/NAME, the run of this name on the hub.

        Raises:
            UserError: the hub has no such repository, or cannot be reached.
        """
        if Path(name).parent.exists() or not re.fullmatch(r"[\w.-]+/[\w.-]+", str(name)):
            return cls(Path(name))
        try:
            patterns = ["*.json", "*.jsonl", "*.yaml", "model*.safetensors"]
            path = snapshot_download(str(name), allow_patterns=patterns, ignore_patterns=["*/*"])
            return cls(Path(path), str(name))
        except (OSError, ValueError) as error:
            raise UserError(
                f"{name}: no such folder; as a name on the hub: {one_line(error)} (expected the folder of a run or "
                "model, or OWNER/NAME of one on the hub)"
            ) from error

    @property
    def results(self) -> Path:
        """Where evaluations go: the run; for OWNER/NAME of the hub ./OWNER--NAME, not the hub's cache.

        Raises:
            UserError: ./OWNER--NAME is a file or another run.
        """
        if not self.hub_name:
            return self.path
        path = Path(self.hub_name.replace("/", "--"))
        if path.is_file() or RunFolder(path).exists:
            raise UserError(
                f"{path}: a file or a run; expected a folder for the results of {self.hub_name}: move it, or work in "
                f"another folder (to use the run, pass ./{path})"
            )
        return path

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def exists(self) -> bool:
        """Whether the folder is a run."""
        return (self.path / "run.yaml").is_file()

    def read_metrics(self) -> dict[str, Any] | None:
        """metrics.json of a finished run; None if the run is not finished or the file cannot be read."""
        with suppress(FileNotFoundError, ValueError, RecursionError):
            metrics = json.loads((self.path / "metrics.json").read_text(encoding="utf-8"))
            return metrics if isinstance(metrics, dict) and metrics.get("finished") is True else None
        return None

    def read_log(self) -> list[dict[str, Any]]:
        """The entries of log.jsonl, without a last line that was cut off; none of a converted model."""
        path = self.path / "log.jsonl"
        if not path.exists():
            return []
        with damage_reported(path):
            *lines, _ = path.read_text(encoding="utf-8").split("\n")
            return [json.loads(line) for line in lines]

    def is_finished(self, info: Mapping[str, Any]) -> bool:
        """Whether the model was trained to its end; that of a converted run is the one that it was made from."""
        if "converted_from" in info:
            return info.get("finished", True) is True
        return self.read_metrics() is not None

    def check_new(self, overwrite: bool = False) -> None:
        """Check that a new run at this path destroys nothing."""
        nearest = next(path for path in (self.path, *self.path.absolute().parents) if path.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
            raise UserError(f"{nearest}: not a folder that can be written; choose another --output")
        if self.exists and not overwrite:
            way_out = "choose another --output (train: --resume continues it, --overwrite replaces it)"
            raise UserError(f"{self.path}: a run exists; {way_out}")
        folders = (path for path in self.content() if path.is_dir() and not path.is_symlink())
        inside = (found for path in folders for found in path.glob("**/run.yaml"))
        if self.exists and (found := next(inside, None)):
            raise UserError(f"{found.parent}: a run inside {self.path}, which would be replaced; move it away")
        # A run that was killed as it began has a lock and its tokenizer only.
        left = _FIRST if (self.path / LOCK).exists() else set()
        if {path.name for path in self.content()} - left and not self.exists:
            raise UserError(f"{self.path}: the folder has files and is not a run; choose another --output")

    @contextmanager
    def written(self, overwrite: bool = False) -> Iterator[RunFolder]:
        """A temporary folder whose files replace the content of this one at the end."""
        with self._staged() as stage:
            yield RunFolder(stage)
            self.check_new(overwrite)
            for path in self.content():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                # With run.yaml the folder is a run, which may be overwritten.
                elif path.name != "run.yaml":
                    path.unlink()

    def locked(self) -> AbstractContextManager[object]:
        """Keep other processes from training this run; the lock ends with the process."""
        message = f"{self.path}: another process is training this run; wait for its end, or choose another --output"
        return lock_file(self.path / LOCK, UserError(message))

    def check_options(self, info: Mapping[str, Any]) -> None:
        """Raise UserError if the run was trained with an option that is gone, so that it cannot be trained again."""
        groups = (info.get("options", {}), info.get("settings", {}).get("training", {}))
        if gone := [name for name in sorted(FORMER_OPTIONS) if any(group.get(name) for group in groups)]:
            raise UserError(f"{self.path}: trained with {gone[0]}, which is gone; it can be evaluated, not resumed")

    def content(self) -> list[Path]:
        """The files and folders inside, except locks and what killed processes left."""
        paths = self.path.iterdir() if self.path.is_dir() else ()
        return [path for path in paths if path.name != LOCK and not path.name.startswith(_PARTIAL)]

    def read_info(self) -> dict[str, Any]:
        """Read run.yaml."""
        path = self.path / "run.yaml"
        if not path.is_file():
            problem = "no such folder" if not self.path.exists() else "not a run (no run.yaml)"
            name = self.hub_name or self.path
            way_out = ". Open this model in Python with an Auto class" if (self.path / "config.json").is_file() else ""
            message = f"{problem}; expected a folder made by `synthesizer train` or `convert --task`"
            raise UserError(f"{name}: {message}{way_out}")
        with damage_reported(path):
            info: dict[str, Any] = dict(load_yaml(path.read_text(encoding="utf-8")))
            if missing := [name for name in _INFO if name not in info]:
                raise ValueError(f"no {', '.join(missing)}")
        return info

    def read_task(self, info: Mapping[str, Any]) -> Task:
        """The task in `info`, the result of `read_info`."""
        with damage_reported(f"{self.path}: the task"):
            return make_task(info["task"], info["options"])

    def read_settings(self, info: Mapping[str, Any]) -> Settings:
        """The settings in `info`, the result of `read_info`."""
        with damage_reported(f"{self.path}: the settings"):
            return Settings.from_dict(info["settings"])

    def check_model(self) -> None:
        """Raise UserError if no best model was saved yet."""
        if not (self.path / "model.safetensors").is_file():
            raise UserError(f"{self.path}: no model yet; continue training with --resume")

    def load_tokenizer(self) -> PreTrainedTokenizerFast:
        """The tokenizer of the run."""
        with damage_reported(f"{self.path}: the tokenizer"):
            # transformers would advise to install other packages.
            if not (self.path / "tokenizer.json").is_file():
                raise ValueError("tokenizer.json is missing")
            tokenizer = PreTrainedTokenizerFast.from_pretrained(str(self.path), local_files_only=True)
            if (last := max([*tokenizer.get_vocab().values(), *tokenizer("").input_ids])) >= len(tokenizer):
                raise ValueError(f"tokenizer.json has token {last}; expected ids below {len(tokenizer)}, its size")
            return tokenizer

    def load(
        self, task: Task, device: torch.device, bf16: bool = False
    ) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
        """The best model of the run, in evaluation mode, and the tokenizer; `bf16` for weights in bfloat16."""
        self.check_model()
        tokenizer = self.load_tokenizer()
        with damage_reported(self.path / "config.json"):
            config = json.loads((self.path / "config.json").read_text(encoding="utf-8"))
            # With the file of an adapter, transformers would load another model.
            foreign = [name for name in _FOREIGN if config.get(name)]
            if foreign := [*foreign, *(path.name for path in self.path.glob("adapter_config.json"))]:
                raise ValueError(f"it has {', '.join(foreign)}, for other weights or code; delete them")
        with damage_reported(f"{self.path}: the model"):
            model, found = cast(Any, task.model_class).from_pretrained(
                str(self.path), output_loading_info=True, local_files_only=True, use_safetensors=True
            )
            # transformers would initialise missing weights.
            if problems := [f"{name} {kind}" for kind in ("missing", "unexpected") for name in found[f"{kind}_keys"]]:
                raise ValueError(f"the weights do not fit config.json: {', '.join(problems[:3])}")
            if infinite := [name for name, weight in model.state_dict().items() if not weight.isfinite().all()]:
                raise ValueError(f"model.safetensors has weights that are not finite: {', '.join(infinite[:3])}")
            if len(tokenizer) > model.config.vocab_size:
                raise ValueError(f"tokenizer.json has {len(tokenizer)} tokens, the model {model.config.vocab_size}")
            # Commands take settings of generation as options, not from generation_config.json.
            reset_generation(task, model)
        return model.eval().to(device, torch.bfloat16 if bf16 else torch.float32), tokenizer

    def save_model(self, model: PreTrainedModel, weights: dict[str, Tensor] | None = None) -> None:
        """Save `model` as the best model, with `weights` instead of its own."""
        with self._staged("model.safetensors") as stage:
            model.save_pretrained(stage, state_dict=weights)
            # Files of safetensors can only be read by their owner.
            for path in stage.glob("*.safetensors"):
                shutil.copymode(stage / "config.json", path)

    def write_text(self, name: str, text: str) -> None:
        """Write a file of the run, and its folders."""
        with self._staged(name) as stage:
            (stage / name).parent.mkdir(parents=True, exist_ok=True)
            (stage / name).write_text(text, encoding="utf-8")

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON file of the run."""
        self.write_text(name, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")

    def write_yaml(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a YAML file of the run."""
        self.write_text(name, yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True, width=120))

    @contextmanager
    def _staged(self, name: str = "") -> Iterator[Path]:
        """A temporary folder inside; its files, `name` among them, move into the run, each in one step."""
        with damage_reported(self.path / name, "written"):
            self.path.mkdir(parents=True, exist_ok=True)
            with staged(self.path, _PARTIAL) as stage:
                yield stage
                # run.yaml after the tokenizer: with it the folder is a run. The weights last: with them it has a model.
                files = [path for path in stage.rglob("*") if path.is_file()]
                for path in sorted(files, key=lambda path: (path.suffix == ".safetensors", path.name == "run.yaml")):
                    target = self.path / path.relative_to(stage)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    path.replace(target)


@dataclass(frozen=True)
class PretrainedRun:
    """A run to start from; `open` makes it. With `scratch`, only its architecture and tokenizer are used."""

    run: RunFolder
    task: Task
    settings: Settings
    weights_sha256: str
    finished: bool
    scratch: bool = False

    @classmethod
    def open(cls, path: Path, task: type[Task], scratch: bool = False) -> PretrainedRun:
        """The run at `path`, as the start of a run of `task`.

        Raises:
            UserError: it does not exist, has no model yet, is damaged, or its model class does not fit.
        """
        run = RunFolder(path.resolve())
        info = run.read_info()
        own = run.read_task(info)
        if own.model_class not in (possible := possible_starts(task)):
            raise UserError(
                f"{path}: a run of task {own.name}, whose model is a {own.model_class.__name__}; task {task.name} can "
                f"only start from {' or '.join(sorted(kind.__name__ for kind in possible))}"
            )
        settings = run.read_settings(info)
        run.check_model()
        with (run.path / "model.safetensors").open("rb") as weights:
            digest = hashlib.file_digest(weights, "sha256").hexdigest()
        return cls(run, own, settings, digest, run.is_finished(info), scratch)

    @classmethod
    def reopen(cls, record: Mapping[str, Any], task: type[Task]) -> PretrainedRun:
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
