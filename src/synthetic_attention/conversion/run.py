"""The command `convert`: open a model, replace its heads, write the new model and a report."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from tqdm import tqdm  # type: ignore[import-untyped]
from transformers import AutoTokenizer, PreTrainedTokenizerBase, set_seed

from ..errors import UserError, damage_reported, one_line
from ..inspect.collect import attention_layers
from ..models import SynthesizerModel, SynthesizerPreTrainedModel
from ..tasks.base import Task
from ..training.device import choose_device
from ..training.failures import shortage_reported
from ..training.run_folder import RunFolder
from .calibrate import CALIBRATED, calibrate
from .choose import Choice, Head, choose_heads, mean_loss, measure_heads, replace_heads
from .convert import convert
from .distill import distill
from .report import ConversionReport, compare_speed, describe_layers, draw_heads
from .synthesize import synthesize
from .text import CalibrationText, read_batches

__all__ = ["Conversion", "convert_to"]

REPORT, PICTURE = "report.json", "heads.png"
# Heads are chosen by their loss on so many tokens of the text: every head is measured, several times.
_TOKENS = 4096
Batches = Sequence[Mapping[str, Tensor]]


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """What to convert a model to.

    Attributes:
        synthesizer: for all layers; with `budget` or `max_loss_increase` the function of the replaced heads.
        synthesizer_options: options by function; None for those of the model.
        text: to calibrate on; None for parameters drawn as in a new model.
        budget: the share of the heads of self-attention to replace; None for all.
        max_loss_increase: replace heads as long as the loss per label grows by no more, in nats.
        distill_steps: updates of the new parameters, after calibration.
        max_length: the new model's longest sequence; by default the model's.
    """

    synthesizer: str | list[str] | dict[str, Any]
    synthesizer_options: Mapping[str, Mapping[str, Any]] | None = None
    text: CalibrationText | None = None
    budget: float | None = None
    max_loss_increase: float | None = None
    distill_steps: int = 0
    learning_rate: float = 1e-2
    max_length: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        chooses = [name for name in ("budget", "max_loss_increase") if getattr(self, name) is not None]
        flags = [f"--{name.replace('_', '-')}" for name in (*chooses, *(["distill_steps"] * bool(self.distill_steps)))]
        if len(chooses) > 1:
            raise UserError(f"got {' and '.join(flags[:2])}; give one of them")
        if flags and self.text is None:
            raise UserError(f"got {', '.join(flags)} without --calibrate; expected the text to measure heads on")
        if self.budget is not None and not 0 < self.budget <= 1:
            raise UserError(f"got --budget {self.budget}; expected a share of the heads, above 0 and up to 1")
        if self.max_loss_increase is not None and not self.max_loss_increase >= 0:
            raise UserError(f"got --max-loss-increase {self.max_loss_increase}; expected a number, at least 0")
        if not self.learning_rate > 0:
            raise UserError(f"got --learning-rate {self.learning_rate}; expected a number above 0")
        if self.text is not None and self.synthesizer not in CALIBRATED:
            raise UserError(
                f"got --calibrate for {self.synthesizer!r}; expected one of: {', '.join(CALIBRATED)}, which some heads "
                "(--budget, --max-loss-increase) or all get"
            )


@dataclass
class _Source:
    """A model with vanilla in all layers; info and task of the run that it is from, if any."""

    model: SynthesizerPreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    info: dict[str, Any] = field(default_factory=dict)
    task: Task[Any, Any] | None = None


def convert_to(
    name: str, output: Path, how: Conversion, *, device: str | None = None, report: Callable[[str], object] = print
) -> ConversionReport:
    """Convert a model and write the new one, its tokenizer, report.json and heads.png to a new folder.

    Args:
        name: the folder of a run, or what `convert` takes. The result of a run is a folder that commands take as a run.
        output: written at the end, in one step.
        device: as for `choose_device`.
        report: called with each line for the user.

    Raises:
        UserError: the model cannot be converted, or the text or the folder cannot be used.
    """
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise UserError(f"{output}: exists; choose another --output")
    above = next(path for path in output.absolute().parents if path.exists())
    if not (above.is_dir() and os.access(above, os.W_OK)):
        raise UserError(f"{output}: {above} is no folder that can be written to; choose another --output")
    place = choose_device(device)
    set_seed(how.seed)
    source = _open(name, how.max_length)
    if how.text is not None and type(source.model) is SynthesizerModel:
        raise UserError(f"got --calibrate for {name}, a model without a head; expected one that has a loss")
    dtype = source.model.dtype
    # Mean attention and its logarithm need more digits than half precision has.
    cast(Any, source.model.eval()).to(place, torch.float32)
    advice = "give a shorter text, a smaller --batch-tokens or --max-length, or a device with more memory"
    with shortage_reported(advice, lambda: "nothing was written"):
        batches = [] if how.text is None else read_batches(source.model, source.tokenizer, how.text, source.task)
        found, new = _convert(name, source.model, how, batches, report)
        sample = batches[0] if batches else _random_batch(source.model)
        for model in (source.model, new):
            cast(Any, model).to(dtype)
        found.speed = compare_speed(source.model, new, sample)
        _write(output, source, new, found)
    return found


def _open(name: str, max_length: int | None) -> _Source:
    folder = RunFolder(Path(name))
    if folder.exists:
        info = folder.read_info()
        task = folder.read_task(info)
        model, tokenizer = folder.load(task, torch.device("cpu"))
        with _user_errors():
            return _Source(convert(model, max_length=max_length), tokenizer, info, task)
    with _user_errors():
        new = convert(name, max_length=max_length)
    with damage_reported(f"the tokenizer of {name}"):
        return _Source(new, AutoTokenizer.from_pretrained(name, trust_remote_code=False))


@contextmanager
def _user_errors() -> Iterator[None]:
    """Raise each ValueError as a UserError."""
    try:
        yield
    except UserError:
        raise
    # The strict dataclass of huggingface_hub reports a wrong type with exceptions of its own.
    except (ValueError, StrictDataclassError) as error:
        raise UserError(one_line(error)) from error


def _convert(
    name: str,
    model: SynthesizerPreTrainedModel,
    how: Conversion,
    batches: Batches,
    report: Callable[[str], object],
) -> tuple[ConversionReport, SynthesizerPreTrainedModel]:
    """The new model, and what is known of it."""
    if not batches:
        with _user_errors():
            new = synthesize(model, how.synthesizer, synthesizer_options=how.synthesizer_options)
        return ConversionReport(name, new.config.synthesizer), new
    function = cast(str, how.synthesizer)
    report(f"calibrating on {sum(int(batch['attention_mask'].sum()) for batch in batches):,} tokens")
    names = [*dict.fromkeys((function, "random", "dense"))]
    with _user_errors():
        made = calibrate(model, batches, names, synthesizer_options=how.synthesizer_options)
    fitted = dict(zip(names, made, strict=True))
    costs = measure_heads(model, fitted, batches)
    loss = {"before": mean_loss(model, batches)}
    heads, increases = _chosen(model, fitted[function], how, batches)
    new = replace_heads(model, fitted[function], function, heads)
    loss["calibrated"] = mean_loss(new, batches)
    if how.distill_steps and heads:
        with tqdm(total=how.distill_steps, desc="distilling", unit="step", disable=None, leave=False) as bar:

            def advance(error: float) -> None:
                bar.set_postfix_str(f"error {error:.4f}", refresh=False)
                bar.update()

            distill(new, model, batches, how.distill_steps, learning_rate=how.learning_rate, progress=advance)
        loss["distilled"] = mean_loss(new, batches)
    layers = describe_layers(model)
    return ConversionReport(name, new.config.synthesizer, function, layers, costs, heads, increases, loss), new


def _chosen(
    model: SynthesizerPreTrainedModel, fitted: SynthesizerPreTrainedModel, how: Conversion, batches: Batches
) -> Choice:
    every = [Head(n, head) for n, layer in enumerate(attention_layers(model)) for head in range(layer.module.num_heads)]
    if how.max_loss_increase is None and how.budget in (None, 1.0):
        return Choice(every, {})
    sample, tokens = list[Mapping[str, Tensor]](), 0
    while len(sample) < len(batches) and tokens < _TOKENS:
        sample.append(batches[len(sample)])
        tokens += int(sample[-1]["attention_mask"].sum())
    most = len(every) if how.budget is None else round(how.budget * len(every))
    if not most:
        raise UserError(f"got --budget {how.budget} of {len(every)} heads; expected a share of at least one head")
    with tqdm(total=most, desc="choosing heads", unit="head", disable=None, leave=False) as bar:
        return choose_heads(
            model,
            fitted,
            sample,
            budget=how.budget,
            max_loss_increase=how.max_loss_increase,
            progress=lambda count: bar.update(count - bar.n),
        )


def _random_batch(model: SynthesizerPreTrainedModel) -> dict[str, Tensor]:
    """Tokens to time a model with."""
    length = min(16, model.config.max_position_embeddings)
    ids = torch.randint(model.config.vocab_size, (8, length), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _write(output: Path, source: _Source, new: SynthesizerPreTrainedModel, found: ConversionReport) -> None:
    output.absolute().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.absolute().parent, prefix=f".partial-{output.name}-") as stage:
        folder = RunFolder(Path(stage) / "new")
        folder.path.mkdir()
        source.tokenizer.save_pretrained(folder.path)
        if source.info:
            config, info = new.config, source.info
            settings = {
                "synthesizer": config.synthesizer,
                "synthesizer_options": config.synthesizer_options or {},
                "model": {**info["settings"]["model"], "max_position_embeddings": config.max_position_embeddings},
            }
            command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
            folder.write_yaml(
                "run.yaml",
                {
                    **info,
                    "commands": [*info["commands"], command],
                    "settings": {**info["settings"], **settings},
                    "converted_from": found.model,
                },
            )
        folder.write_json(REPORT, found.to_dict())
        if found.costs:
            draw_heads(found).savefig(folder.path / PICTURE)
        folder.save_model(new)
        folder.path.rename(output.absolute())
