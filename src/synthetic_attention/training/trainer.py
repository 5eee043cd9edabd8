"""The Trainer: batches by tokens, a training clock, validation by the task, checkpoints that are whole."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from accelerate.utils import gather_object  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerFast, PrinterCallback, Trainer

from ..data.batching import Share
from ..data.examples import Examples
from ..tasks import UserError
from ..tasks.base import Task
from ..tasks.types import Scores, Split
from .arguments import choose_optimizer, constant_first, free_logits, trainer_arguments
from .averaging import averaged, best_snapshots
from .batching import TokenBatchSampler
from .checkpoint import Checkpoint, Progress, Snapshot, is_complete, snapshot_paths
from .clock import TrainingClock
from .device import compile_blocks
from .distributed import any_process
from .failures import damage_reported
from .run_folder import RunFolder
from .settings import Settings

__all__ = ["SynthesizerTrainer", "Validation"]


@dataclass(frozen=True)
class Validation:
    """What to validate on: a split as it was read, and its examples."""

    split: Split
    examples: Examples[Any]


class _StoppedError(Exception):
    """A validation was given up on request."""


class SynthesizerTrainer(Trainer):
    """Trains one run, from `start` if that is given; `stopped` says whether to give up a validation.

    The task validates, rather than `Trainer.evaluate`, which pads every batch to one length and gathers without
    trimming. The best model by the task's score is written to the run as soon as it is found.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        task: Task[Any, Any],
        settings: Settings,
        run: RunFolder,
        tokenizer: PreTrainedTokenizerFast,
        train: Examples[Any],
        validation: Validation,
        device: torch.device,
        start: Checkpoint | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        arguments = trainer_arguments(settings, run, start, device)
        collate = partial(task.collate, pad_token_id=cast(int, model.config.pad_token_id))
        # Without processing_class: the run has the tokenizer already, checkpoints need no copy of it.
        super().__init__(
            model,
            arguments,
            data_collator=collate,
            train_dataset=train,
            eval_dataset=validation.examples,
            optimizer_cls_and_kwargs=choose_optimizer(settings.training),
        )
        # Trainer turns the cache off in the configuration, and it would be saved like that.
        model.config.use_cache = True
        if settings.training.compile:
            compile_blocks(model)
        self.remove_callback(PrinterCallback)
        self.task = task
        self.run = run
        self.settings = settings
        self.tokenizer = tokenizer
        self.validation = validation
        self.progress = progress = Progress() if start is None else start.progress
        self.clock = TrainingClock(arguments.device, progress.seconds)
        self._start = start
        self._stopped = stopped
        self._saved_step = None if start is None else start.step
        self._collate = collate
        self._tokens = torch.zeros((), dtype=torch.int64, device=arguments.device)
        self._logged = (progress.tokens, progress.seconds)
        self._staging: Path | None = None
        lengths = train.lengths()
        self._tokens_per_epoch = train.tokens_per_pass()
        self._sampler = TokenBatchSampler(
            lengths,
            settings.training.batch_tokens,
            settings.seed,
            arguments.max_steps * arguments.gradient_accumulation_steps * arguments.world_size,
            train.draw,
        )

    def get_train_dataloader(self) -> DataLoader[Any]:
        """The stream of token batches; Trainer takes all of it for one epoch."""
        loader = DataLoader(
            cast("Examples[Any]", self.train_dataset), batch_sampler=self._sampler, collate_fn=self._collate
        )
        return cast("DataLoader[Any]", self.accelerator.prepare(loader))

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Optimizer:
        """Trainer's, by which logits are free to move whatever size they start with."""
        is_new = self.optimizer is None
        optimizer: Optimizer = super().create_optimizer(*args, **kwargs)
        if is_new:
            free_logits(optimizer, cast(nn.Module, self.model), self.settings.training.logit_scale)
        return optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LRScheduler:
        """The schedule of the rate: transformers' own, or that of T5."""
        training = self.settings.training
        optimizer = optimizer or self.optimizer
        if self.lr_scheduler is None and training.schedule == "inverse_sqrt" and training.constant_steps:
            assert optimizer is not None
            self.lr_scheduler = constant_first(optimizer, training)
        return super().create_scheduler(num_training_steps, optimizer)

    def run_training(self) -> None:
        """Train from the start or the checkpoint, with the clock running, to the end or until `stopped`."""
        self.clock.start()
        try:
            self.train(resume_from_checkpoint=None if self._start is None else str(self._start.path))
        except _StoppedError:
            # Validation will be done when the run is resumed, from the checkpoint that was saved before it.
            pass
        finally:
            self.clock.stop()

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """One batch; its real tokens are counted on the device, so that the counting does not wait for the step."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        self._tokens += self.task.tokens(inputs)
        return loss

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Not counted: the base class walks through the whole model at each step for it, and nothing here reads it."""
        return 0

    def count_tokens(self) -> int:
        """Tokens trained on so far, by all processes, padding not counted."""
        mine = int(self._tokens.item())
        return self.progress.tokens + sum(gather_object([mine]))

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log with tokens, tokens per second since the last entry, and minutes on the training clock.

        Raises:
            UserError: the loss or the gradient is not finite any more.
        """
        # The summary at the end is in samples per second, which says nothing about batches by tokens.
        if "train_runtime" in logs:
            return
        tokens, seconds = self.count_tokens(), self.clock.seconds
        if "loss" in logs:
            self._refuse_divergence("the loss", logs["loss"])
            self._refuse_divergence("the norm of the gradient", logs.get("grad_norm", 0.0))
            elapsed = seconds - self._logged[1]
            logs["tokens_per_second"] = round((tokens - self._logged[0]) / elapsed, 1) if elapsed > 0 else 0.0
            self._logged = (tokens, seconds)
        # Trainer's own is the share of the endless stream.
        self.state.epoch = round(tokens / self._tokens_per_epoch, 3)
        super().log({**logs, "tokens": tokens, "minutes": round(seconds / 60, 3)})

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Validate, keep the model if it is the best so far, write metrics.json. The clock stands still.

        The checkpoint comes before it and learns the scores last. So nothing that happens here costs steps, and a
        run that is killed here validates once more when it is resumed.

        Raises:
            UserError: weights or loss are not finite any more.
        """
        # Generation would be compiled again for each of its many shapes.
        with self.clock.paused(), torch.compiler.set_stance("force_eager"):
            self._save_checkpoint(self.model_wrapped, None)
            scores = self._validate()
            self._keep_if_best(scores)
            self._keep_snapshot(scores)
            metrics = {f"eval_{name}": value for name, value in scores.items() if isinstance(value, float)}
            self.log(dict(metrics))
            if self._is_complete():
                self._average(scores)
            # Not before: a run that is stopped while it averages is not finished.
            self.progress.last = scores
            self.write_metrics()
            progress = self._progress()
            if self.args.should_save:
                self.run.write_text(f"{self._checkpoint_name()}/{Progress.NAME}", progress.to_json())
            self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def write_metrics(self) -> dict[str, Any]:
        """Write metrics.json: best and last validation, and the speed over the whole run."""
        tokens, seconds = self.count_tokens(), self.clock.seconds
        examples = cast("Examples[Any]", self.train_dataset)
        step = self.state.global_step
        finished = self._is_complete() and self.progress.last.get("step") == step
        metrics = {
            "task": self.task.name,
            "synthesizer": self.settings.synthesizer,
            "seed": self.settings.seed,
            "finished": finished,
            "best": self.progress.best or None,
            "last": self.progress.last or None,
            "steps": step,
            "minutes": seconds / 60,
            "tokens": tokens,
            "tokens_per_second": tokens / seconds if seconds else 0.0,
            "epochs": self.state.epoch,
            "parameters": cast(PreTrainedModel, self.model).num_parameters(only_trainable=True),
            "train_examples": len(examples),
            "train_examples_dropped": examples.dropped,
            "train_lines_skipped": examples.skipped,
            "train_examples_truncated": examples.truncated,
        }
        if self.args.should_save:
            self.run.write_json("metrics.json", metrics)
        return metrics

    def _validate(self) -> dict[str, Any]:
        loss = self._loss()
        self._refuse_divergence("the validation loss", loss)
        return {"step": self.state.global_step, "loss": loss, **self._score(loss)}

    def _keep_if_best(self, scores: dict[str, Any]) -> None:
        if self.task.improves(scores, self.progress.best):
            self.progress.best = scores
            if self.args.should_save:
                self.run.save_model(cast(PreTrainedModel, self.model))

    def _keep_snapshot(self, scores: dict[str, Any]) -> None:
        # Where a run was stopped, or ended by the minute, must not matter to one that is resumed.
        if (
            self.settings.training.average_checkpoints > 1
            and scores["step"] % self.settings.training.eval_interval == 0
        ):
            self.progress.snapshots = self._best_snapshots(scores)

    def _best_snapshots(self, scores: dict[str, Any]) -> list[Snapshot]:
        known = {*self.progress.snapshots, (scores["step"], float(scores[self.task.selects_by]))}
        return best_snapshots(known, self.settings.training.average_checkpoints, self.task.larger_is_better)

    def _average(self, last: dict[str, Any]) -> None:
        """Validate the mean of the best weights too, and take it if it is as good; `last` are the present scores."""
        steps = [step for step, _ in self._best_snapshots(last)]
        if len(steps) < 2:
            return
        checkpoint = self.run.path / self._checkpoint_name()
        with averaged(cast(PreTrainedModel, self.model), snapshot_paths(checkpoint, steps)):
            scores = {**self._validate(), "averaged": steps}
            self._keep_if_best(scores)
        numbers = {f"average_{name}": value for name, value in scores.items() if isinstance(value, float)}
        self.log({**numbers, "averaged": steps})  # type: ignore[dict-item]

    def _is_complete(self) -> bool:
        # Clocks differ between processes, and all have to go on to the same work.
        return any_process(is_complete(self.settings.training, self.state.global_step, self.clock.seconds))

    def _loss(self) -> float:
        return self.task.loss(cast(PreTrainedModel, self.model), self.validation.examples, self._share())

    def _score(self, loss: float) -> Scores:
        model, validation = cast(PreTrainedModel, self.model), self.validation
        return self.task.validate(model, self.tokenizer, validation.split, validation.examples, loss, self._share())

    def _share(self) -> Share:
        return Share(
            batch_tokens=self.settings.training.eval_batch_tokens,
            rank=self.args.process_index,
            world_size=self.args.world_size,
            before_batch=self._give_up_if_stopped,
            gather=gather_object,
        )

    def _give_up_if_stopped(self) -> None:
        # One process alone may not: the others would wait for it.
        if self.args.world_size == 1 and self._stopped():
            raise _StoppedError

    def _refuse_divergence(self, what: str, value: float) -> None:
        if not math.isfinite(value):
            raise UserError(
                f"training diverged: {what} is {value} at step {self.state.global_step}; lower learning_rate or "
                "raise warmup_steps"
            )

    def _progress(self) -> Progress:
        return replace(self.progress, seconds=self.clock.seconds, tokens=self.count_tokens())

    def _checkpoint_name(self) -> str:
        return f"{self.run.checkpoints.name}/checkpoint-{self.state.global_step}"

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        with damage_reported(f"{resume_from_checkpoint}: the checkpoint"):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with damage_reported(f"{checkpoint}: the checkpoint"):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with damage_reported(f"{checkpoint}: the checkpoint"):
            super()._load_rng_state(checkpoint)

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._staging or super()._get_output_dir(trial))

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Save beside the last checkpoint, and put it in its place only when it is complete; once for each step."""
        if self._saved_step == self.state.global_step:
            return
        # A checkpoint is never replaced by what nobody can go on from.
        if not all(bool(p.isfinite().all()) for p in model.parameters()):
            self._refuse_divergence("a weight", math.nan)
        with self.clock.paused():
            self._staging = self.run.checkpoints / ".partial"
            if self.args.should_save:
                shutil.rmtree(self._staging, ignore_errors=True)
            self.accelerator.wait_for_everyone()
            super()._save_checkpoint(model, trial)
            progress = self._progress()
            # Every process adds its random state, and afterwards reads what the first one has put in place.
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                staged = self._staging / Path(self._checkpoint_name()).name
                (staged / Progress.NAME).write_text(progress.to_json(), encoding="utf-8")
                self.run.commit_checkpoint(staged, [step for step, _ in progress.snapshots])
            self.accelerator.wait_for_everyone()
            self._staging, self._saved_step = None, self.state.global_step
