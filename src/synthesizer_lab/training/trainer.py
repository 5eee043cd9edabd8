"""The Trainer: batches by tokens, validation by the task, checkpoints that are complete or ignored."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from accelerate.utils import gather_object  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import DataLoader
from transformers import Adafactor, PreTrainedModel, PreTrainedTokenizerFast, Trainer, TrainingArguments, set_seed
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME
from transformers.trainer_callback import PrinterCallback, TrainerCallback, TrainerControl, TrainerState

from synthetic_attention.synthesizers import Mixture, SynthesizingFunction

from ..data.examples import Examples, TokenBatchSampler
from ..data.source import Split
from ..errors import UserError, damage_reported
from ..tasks.base import EvaluationLoop, Task, count_tokens, evaluate_loss, larger_is_better
from .callbacks import StopRequest, TrainingClock
from .checkpoint import Progress, Snapshot, averaged_weights, commit_checkpoint
from .device import failing_together, gather
from .model_card import update_model_card
from .options import TrainingOptions
from .run_folder import RunFolder
from .settings import Settings
from .sharding import gather_optimizer, gather_weights, is_sharded, load_optimizer, shard_model

# The number of steps of a run that only minutes end; Trainer needs a number.
_ENDLESS = 10**9


@dataclass
class _Arguments(TrainingOptions, TrainingArguments):  # type: ignore[misc]
    """The options of training for Trainer."""

    def __post_init__(self) -> None:
        TrainingArguments.__post_init__(self)
        # Several GPUs need several processes; Trainer would split each batch among the GPUs of this process.
        self._n_gpu = min(self.n_gpu, 1)

    @property
    def place_model_on_device(self) -> bool | None:
        """False keeps Trainer from moving the whole model to a device that may not hold it."""
        return False if self.sharding == "fsdp" else super().place_model_on_device


def _arguments(options: TrainingOptions, output_dir: Path, device: torch.device) -> _Arguments:
    """The options for a Trainer that writes to `output_dir`."""
    values: dict[str, Any] = {
        **vars(options),
        "output_dir": str(output_dir),
        "max_steps": _ENDLESS if options.max_steps == -1 else options.max_steps,
        # Deprecated in newer versions of transformers; `SynthesizerTrainer` reads ours.
        "gradient_checkpointing": None,
        # The Trainer would compile the whole model; we compile its layers.
        "torch_compile": False,
        # After each validation.
        "save_steps": options.eval_steps,
        # It would wait for the device at each step, and hide a loss that is not finite.
        "logging_nan_inf_filter": False,
        "dataloader_pin_memory": device.type == "cuda",
        "remove_unused_columns": False,
        # The sampler starts at the batch that is due; earlier batches may have gone to another number of processes.
        "ignore_data_skip": True,
        # Without it, the processes of torchrun would train separate models on a CPU.
        "use_cpu": device.type == "cpu",
        # Each process takes every n-th batch; batches differ in their number of examples. Copies to a GPU do not block.
        "accelerator_config": {"even_batches": False, "non_blocking": device.type == "cuda"},
        "ddp_find_unused_parameters": False,
        "disable_tqdm": True,
        "log_level": "error",
        "log_level_replica": "error",
    }
    return _Arguments(**values)


@dataclass(frozen=True)
class TrainingInputs:
    """What a run trains: settings, model and data."""

    task: Task
    settings: Settings
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    train: Examples
    validation: Examples
    validation_split: Split
    fingerprints: Mapping[str, Any]


class _Loop(TrainerCallback):
    """Runs the clock, and decides when to validate and to stop."""

    def __init__(self, trainer: SynthesizerTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.trainer.write_log("w", state.log_history)
        # Another Trainer's would fail later, or stop this one.
        vars(state).update(total_flos=0, stateful_callbacks={"TrainerControl": control.state()})

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.trainer.clock.start()

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        trainer = self.trainer
        mine = (args.is_complete(state.global_step, trainer.clock.seconds), trainer.stop_request.received is not None)
        # Processes must stop at the same step, but their clocks and signals differ.
        trainer.complete, stopped = map(any, zip(*gather(mine), strict=True))
        if trainer.complete or stopped:
            control.should_training_stop = control.should_save = control.should_log = True
        control.should_evaluate = trainer.complete or state.global_step % args.eval_steps == 0
        if control.should_save:
            trainer.clock.stop()


class SynthesizerTrainer(Trainer):
    """Trains one run. The best model by the task's score is written to the run folder as soon as it is found.

    The task validates, because `evaluate` of the base class pads every batch to one length and gathers without
    trimming. Training resumes from `start`.
    """

    # Arguments of Trainer, as this class narrows them.
    args: Any

    def __init__(
        self, inputs: TrainingInputs, run: RunFolder, device: torch.device, start: Progress | None = None
    ) -> None:
        model, training, task = inputs.model, inputs.settings.training, inputs.task
        # As for T5, updates are scaled by the size of the weights. Trainer's own `adafactor` turns that off.
        adafactor = {"scale_parameter": True, "relative_step": False, "lr": training.learning_rate}
        # Without processing_class: checkpoints need no copy of the run's tokenizer.
        super().__init__(
            model,
            _arguments(training, run.checkpoints, device),
            data_collator=partial(task.collate, pad_token_id=cast(int, model.config.pad_token_id)),
            train_dataset=inputs.train,
            optimizer_cls_and_kwargs=(Adafactor, adafactor) if training.optim == "adafactor" else None,
        )
        # Trainer turns the cache off in the configuration, which would be saved.
        model.config.use_cache = True
        # The models smooth labels inside of their fused loss.
        self.label_smoother = None
        if training.gradient_checkpointing:
            # Older versions of transformers have only the second name, newer ones will only have the first.
            names = ("activation_checkpointing_enable", "gradient_checkpointing_enable")
            enable = next(getattr(model, name) for name in names if hasattr(model, name))
            enable({"use_reentrant": False})
        if training.torch_compile:
            # Layers of the same kind share their code for all batch sizes; the loss stays the fused one.
            for module in model.modules():
                if type(module).__name__ in (model._no_split_modules or ()):
                    module.compile(dynamic=True)
        self.inputs, self.task, self.run = inputs, task, run
        self.progress = progress = start or Progress()
        self.clock = TrainingClock(self.args.device, progress.seconds)
        self.stop_request = StopRequest()
        # Whether training has come to its end, and not only to a stop.
        self.complete = False
        self._tokens = torch.zeros((), dtype=torch.int64, device=self.args.device)
        self._batches_per_update = self.args.gradient_accumulation_steps * self.args.world_size
        self._logged = (progress.tokens, progress.seconds)
        self._tokens_per_epoch = inputs.train.tokens_per_pass()
        self.remove_callback(PrinterCallback)
        self.add_callback(_Loop(self))

    def run_training(self) -> None:
        """Train to the end or until a stop is requested."""
        step = self.progress.step
        start = str(self.run.checkpoints / f"checkpoint-{step}") if step else None
        if step or self.args.process_index:
            # Each process has its own dropout. Trainer restores the random states that were saved.
            key = [self.args.seed, step, self.args.process_index]
            set_seed(int(np.random.SeedSequence(key).generate_state(1)[0]))
        try:
            self.train(resume_from_checkpoint=start)
        finally:
            self.clock.stop()

    def create_accelerator_and_postprocess(self) -> None:
        """Create the Accelerator. It is not to wrap a sharded model for DDP."""
        super().create_accelerator_and_postprocess()
        if self.args.sharding == "fsdp":
            # Autocast stays.
            self.accelerator.prepare_model = partial(self.accelerator.prepare_model, evaluation_mode=True)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model of a checkpoint; the weights of a sharded model are gathered."""
        weights = gather_weights(self.inputs.model)
        if self.args.should_save:
            self.inputs.model.save_pretrained(cast(str, output_dir), state_dict=weights)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        checkpoint = self.run.checkpoints / f"checkpoint-{self.state.global_step}"
        # On a full disk, PyTorch and safetensors raise errors of their own.
        with damage_reported(checkpoint, "written"):
            super()._save_checkpoint(*args, **kwargs)
        # Every process has added its random state.
        self.accelerator.wait_for_everyone()
        step, start = self.state.global_step, self.progress
        batches = start.batches + (step - start.step) * self._batches_per_update
        tokens = self.count_tokens()
        if self.args.should_save:
            progress = replace(start, step=step, seconds=self.clock.seconds, tokens=tokens, batches=batches)
            commit_checkpoint(checkpoint, progress)
        self.accelerator.wait_for_everyone()

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        state = gather_optimizer(cast(Optimizer, self.optimizer))
        if self.args.should_save:
            torch.save(state, Path(output_dir) / OPTIMIZER_NAME)
            torch.save(cast(LRScheduler, self.lr_scheduler).state_dict(), Path(output_dir) / SCHEDULER_NAME)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        with failing_together(), damage_reported(f"{resume_from_checkpoint}: the checkpoint"):
            if self.inputs.model.device.type != "meta":
                super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            with damage_reported(f"{checkpoint}: the checkpoint"):
                load_optimizer(cast(Optimizer, self.optimizer), Path(checkpoint) / OPTIMIZER_NAME)
                schedule = torch.load(Path(checkpoint) / SCHEDULER_NAME, weights_only=True)
                cast(LRScheduler, self.lr_scheduler).load_state_dict(schedule)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with damage_reported(f"{checkpoint}: the checkpoint"):
            super()._load_rng_state(checkpoint)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """The stream of token batches, as one epoch, from the batch that is due."""
        train, args = self.inputs.train, self.args
        # Also when resuming: Trainer finds its epoch, always the first, by the length. The surplus is not read.
        batches = args.max_steps * self._batches_per_update
        sampler = TokenBatchSampler(train, args.batch_tokens, args.seed, batches, self.progress.batches)
        # A new iterator draws a number. When resuming, the random state is restored before that.
        generator = torch.Generator() if self.progress.step else None
        loader = DataLoader(
            train,
            batch_sampler=sampler,
            collate_fn=self.data_collator,
            pin_memory=args.dataloader_pin_memory,
            generator=generator,
        )
        return cast("DataLoader[Any]", self.accelerator.prepare(loader))

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Optimizer:
        """The optimizer; Adafactor with a larger floor of the update scale for logit parameters (R, gates, key biases).

        They start near zero so that attention starts almost uniform. Scaled by their size, updates would leave them
        there for thousands of steps: at T5's rate of 0.01 the first update of R is 3e-5, that of a gate 1e-5.
        """
        is_new = self.optimizer is None
        # After a checkpoint was loaded into the whole model, before the optimizer takes the parameters.
        if self.args.sharding == "fsdp" and not is_sharded(self.inputs.model):
            shard_model(self.inputs.model, self.args.device)
        optimizer: Optimizer = super().create_optimizer(*args, **kwargs)
        if is_new and isinstance(optimizer, Adafactor):
            functions = (module for module in self.inputs.model.modules() if isinstance(module, SynthesizingFunction))
            logits = {parameter for function in functions for parameter in function.logit_parameters()}
            for group in [*optimizer.param_groups]:
                if apart := [parameter for parameter in group["params"] if parameter in logits]:
                    group["params"] = [parameter for parameter in group["params"] if parameter not in logits]
                    eps = (group["eps"][0], self.args.logit_scale)
                    optimizer.add_param_group({**group, "params": apart, "eps": eps})
        return optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LRScheduler:
        """The schedule of transformers, or T5's."""
        args = self.args
        # The polynomial one divides by the steps that are left after the warm-up.
        num_training_steps = max(num_training_steps, args.warmup_steps + 1)
        if self.lr_scheduler is None and args.lr_scheduler_type == "inverse_sqrt" and args.constant_steps:
            target = cast(Optimizer, optimizer or self.optimizer)
            self.lr_scheduler = constant_then_inverse_sqrt(target, args.warmup_steps, args.constant_steps)
        return super().create_scheduler(num_training_steps, optimizer)

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The model's own loss, with label smoothing."""
        if self.args.label_smoothing_factor:
            # Not called label…: Trainer takes such arguments of `forward` for labels.
            inputs = {**inputs, "smoothing": self.args.label_smoothing_factor}
        return super().compute_loss(model, inputs, *args, **kwargs)

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """One batch. Its tokens are counted on the device, without waiting for it."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        self._tokens += count_tokens(inputs, with_targets=self.inputs.model.config.is_encoder_decoder)
        return loss

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Not counted: the base class would walk through all parameters at each step."""
        return 0

    def count_tokens(self) -> int:
        """Tokens trained on so far by all processes, without padding."""
        return self.progress.tokens + sum(gather_object([int(self._tokens.item())]))

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log with tokens, tokens per second since the last entry, and minutes of training; validations with α."""
        # The final summary counts samples per second, which means nothing for batches by tokens.
        if "train_runtime" in logs:
            return
        tokens, seconds = self.count_tokens(), self.clock.seconds
        if "loss" in logs:
            self.check_finite("the loss", logs["loss"])
            self.check_finite("the norm of the gradient", logs.get("grad_norm", 0.0))
            elapsed = seconds - self._logged[1]
            logs["tokens_per_second"] = round((tokens - self._logged[0]) / elapsed, 1) if elapsed > 0 else 0.0
            self._logged = (tokens, seconds)
        # Trainer's epoch is the part of the endless stream.
        self.state.epoch = round(tokens / self._tokens_per_epoch, 3)
        super().log({**logs, "tokens": tokens, "minutes": round(seconds / 60, 3)})
        if "eval_loss" in logs and (alphas := mixture_weights(self.inputs.model)):
            cast(dict[str, Any], self.state.log_history[-1])["alpha"] = alphas
        self.write_log("a", self.state.log_history[-1:])

    def write_log(self, mode: str, entries: list[dict[str, Any]]) -> None:
        """Write log.jsonl anew, or append to it."""
        if self.args.should_save:
            with (self.run.path / "log.jsonl").open(mode, encoding="utf-8") as file:
                file.writelines(json.dumps({"step": 0, **entry}, allow_nan=False) + "\n" for entry in entries)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Validate, and keep the model if it is the best so far."""
        # Generation would be compiled again for each of its many shapes.
        with torch.compiler.set_stance("force_eager"):
            scores = self._validate()
            self._keep_if_best(scores)
            # Only regular validations count, so that a run that was stopped and resumed averages the same.
            if self.args.average_checkpoints > 1 and self.state.global_step % self.args.eval_steps == 0:
                self.progress.snapshots = self._best_snapshots(scores)
            metrics = {f"eval_{name}": value for name, value in scores.items() if isinstance(value, float)}
            self.log(dict(metrics))
            if self.complete:
                self._average(scores)
        self.progress.last = scores
        self.write_metrics()
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def write_metrics(self) -> dict[str, Any]:
        """Write metrics.json, with the best and last validation and the speed of the whole run, and the model card."""
        tokens, seconds = self.count_tokens(), self.clock.seconds
        train = self.inputs.train
        metrics = {
            "task": self.task.name,
            "synthesizer": self.inputs.settings.synthesizer,
            "seed": self.args.seed,
            "finished": self.complete,
            "best": self.progress.best or None,
            "last": self.progress.last or None,
            "steps": self.state.global_step,
            "minutes": seconds / 60,
            "tokens": tokens,
            "tokens_per_second": tokens / seconds if seconds else 0.0,
            "epochs": self.state.epoch,
            "parameters": self.inputs.model.num_parameters(only_trainable=True),
            "train_examples": len(train),
            "train_examples_dropped": train.dropped,
            "train_lines_skipped": train.skipped,
            "train_examples_truncated": train.truncated,
        }
        if self.args.should_save:
            self.run.write_json("metrics.json", metrics)
            update_model_card(self.run, metrics)
        return metrics

    def _validate(self) -> dict[str, Any]:
        examples = self.inputs.validation
        loop = EvaluationLoop(
            self.inputs.model,
            self.inputs.tokenizer,
            batch_tokens=self.args.eval_batch_tokens,
            rank=self.args.process_index,
            world_size=self.args.world_size,
            is_sharded=is_sharded(self.inputs.model),
        )
        loss = evaluate_loss(self.task, loop, examples)
        self.check_finite("the validation loss", loss)
        scores = self.task.validate(loop, self.inputs.validation_split, examples, loss)
        return {"step": self.state.global_step, "loss": loss, **scores}

    def _keep_if_best(self, scores: dict[str, Any]) -> None:
        metric, best = self.task.metric_for_best_model, self.progress.best
        # Of equal scores the later: its model was trained longer.
        if best and scores[metric] != best[metric] and (scores[metric] > best[metric]) != larger_is_better(self.task):
            return
        self.progress.best = scores
        self.save_best_model()

    def save_best_model(self) -> None:
        """Save the model as the best model; every process has to call this."""
        weights = gather_weights(self.inputs.model)
        if self.args.should_save:
            self.run.save_model(self.inputs.model, weights)

    def _best_snapshots(self, scores: dict[str, Any]) -> list[Snapshot]:
        """The best validations so far, with this one, ordered by step; of equal ones the later."""
        sign = 1 if larger_is_better(self.task) else -1
        known = {*self.progress.snapshots, (scores["step"], float(scores[self.task.metric_for_best_model]))}
        ranked = sorted(known, key=lambda snapshot: (sign * snapshot[1], snapshot[0]))
        return sorted(ranked[-self.args.average_checkpoints :])

    def _average(self, last: dict[str, Any]) -> None:
        """Validate the average of the best weights, and keep it if it is as good; `last` has the present scores."""
        snapshots = self._best_snapshots(last)
        if len(snapshots) < 2:
            return
        steps = [step for step, _ in snapshots]
        with averaged_weights(self.inputs.model, self.state.global_step, self.run.checkpoints, steps):
            scores = {**self._validate(), "averaged": steps}
            self._keep_if_best(scores)
        numbers = {f"average_{name}": value for name, value in scores.items() if isinstance(value, float)}
        self.log({**numbers, "averaged": steps})  # type: ignore[dict-item]

    def check_finite(self, name: str, value: float) -> None:
        """Raise UserError if a value is infinite or NaN."""
        if not math.isfinite(value):
            raise UserError(
                f"training diverged: {name} is {value} at step {self.state.global_step}; lower learning_rate or "
                "raise warmup_steps"
            )


def mixture_weights(model: nn.Module) -> dict[str, list[list[float]]]:
    """α of each mixture in a model, by the module's name: a list per function, with a number per head (or one for all).

    Every process has to call this.
    """
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, Mixture) and (weights := module.weights()) is not None:
            whole = weights.full_tensor() if isinstance(weights, DTensor) else weights
            # log.jsonl, and the log in each checkpoint, need no more digits.
            found[name] = [[round(alpha, 6) for alpha in heads] for heads in whole.tolist()]
    return found


def constant_then_inverse_sqrt(optimizer: Optimizer, warmup_steps: int, constant_steps: int) -> LambdaLR:
    """T5's schedule: warm-up, the highest rate until `constant_steps`, then the rate times √(constant_steps / step)."""

    def factor(step: int) -> float:
        scale = max(warmup_steps, constant_steps)
        return step / warmup_steps if step < warmup_steps else math.sqrt(scale / max(step, scale))

    return LambdaLR(optimizer, factor)
