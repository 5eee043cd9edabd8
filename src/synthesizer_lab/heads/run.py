"""The command `convert`: open a model, replace its heads, write the new model and a report."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from tqdm import tqdm  # type: ignore[import-untyped]
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast, set_seed

from synthetic_attention.conversion.convert import convert
from synthetic_attention.conversion.synthesize import synthesize
from synthetic_attention.models import SynthesizerModel, SynthesizerPreTrainedModel

from ..attention.fitting import FUNCTIONS, factorize, fit, measure_divergences
from ..attention.layers import Batch, attention_layers, mean_loss
from ..errors import UserError, damage_reported, user_errors
from ..tasks.base import Task, reset_generation
from ..tasks.language_modeling import LanguageModeling
from ..tasks.seq2seq import SequenceToSequence
from ..training.device import choose_device, shortage_reported
from ..training.run_folder import RunFolder, data_path, portable_path
from ..training.settings import Settings
from .choose import Budget, Head, allowed_heads, choose_heads, replace_heads
from .distill import distill
from .report import ConversionReport, compare_speed
from .text import CalibrationText, read_batches

__all__ = ["Conversion", "convert_to"]

_CALIBRATED = (*FUNCTIONS, "factorized_random")
# Heads are chosen by their loss on so many tokens of the text: every head is measured, several times.
_TOKENS = 4096


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """What to convert a model to.

    Attributes:
        synthesizer: for all layers; with `text` the function of the replaced heads.
        synthesizer_options: options by function, for a conversion without text; None for those of the model.
        text: to calibrate on; None for parameters drawn as in a new model.
        budget: the share of the heads of self-attention to replace, of all or by stack.
        distill_steps: updates of the new parameters, after calibration.
        max_length: the new model's longest sequence; by default the model's.
        task, data: of a model that is no run: the result is a run of this task, with this data.
    """

    synthesizer: str | list[str] | dict[str, Any]
    synthesizer_options: Mapping[str, Mapping[str, Any]] | None = None
    text: CalibrationText | None = None
    budget: Budget = 1.0
    distill_steps: int = 0
    max_length: int | None = None
    seed: int = 0
    task: Task[Any, Any] | None = None
    data: Path | None = None

    def __post_init__(self) -> None:
        shares = [*self.budget.values()] if isinstance(self.budget, Mapping) else [self.budget]
        if not (all(0 <= share <= 1 for share in shares) and any(shares)):
            raise UserError(f"got --budget {self.budget}; expected shares of the heads, above 0 and up to 1")
        if self.text is None and (self.budget != 1 or self.distill_steps):
            raise UserError(
                "got --budget or --distill-steps without --calibrate; expected the text to measure heads on"
            )
        if (self.task is None) != (self.data is None):
            raise UserError(f"got --{'data' if self.task is None else 'task'} alone; expected --task and --data")
        if self.text is not None and (self.synthesizer not in _CALIBRATED or self.synthesizer_options):
            raise UserError(
                f"got --calibrate for {self.synthesizer!r}{' with options' if self.synthesizer_options else ''}; "
                f"expected one of: {', '.join(_CALIBRATED)}, without options"
            )


@dataclass
class _Source:
    """A model with vanilla in all layers; info and task of the run that it is from, if any."""

    model: Any
    tokenizer: PreTrainedTokenizerBase | None
    info: dict[str, Any] = field(default_factory=dict)
    task: Task[Any, Any] | None = None


def convert_to(
    name: str, output: Path, how: Conversion, *, device: str | None = None, report: Callable[[str], object] = print
) -> ConversionReport:
    """Convert a model and write the new one, its tokenizer and report.json to a new folder.

    Args:
        name: the folder of a run, or what `convert` takes. The result of a run is a folder that commands take as a run.
        output: written at the end, in one step.
        device: as for `choose_device`.
        report: called with each line for the user.

    Raises:
        UserError: the model cannot be converted, or the text or the folder cannot be used.
    """
    RunFolder(output).check_new()
    place = choose_device(device)
    set_seed(how.seed)
    source = _open(name, how, report)
    model, dtype = source.model, source.model.dtype
    # Mean attention and its logarithm need more digits than half precision has.
    model.eval().to(place, torch.float32)
    advice = "give a shorter text, a smaller --batch-tokens or --max-length, or a device with more memory"
    with shortage_reported(advice, lambda: "nothing was written"):
        if how.text is None:
            with user_errors():
                new = synthesize(model, how.synthesizer, synthesizer_options=how.synthesizer_options)
            found = ConversionReport(name, new.config.synthesizer)
            ids = torch.randint(model.config.vocab_size, (8, min(16, model.config.max_position_embeddings)))
            sample: Batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        else:
            if isinstance(model, SynthesizerModel) and model.config.is_encoder_decoder:
                raise UserError(f"got --calibrate for {name}, a decoder without a head; expected one that generates")
            # Before the text is read, which can take long.
            allowed_heads(model, how.budget)
            batches, held_out = read_batches(model, source.tokenizer, how.text, source.task)
            found, new = _replace(name, model, how, batches, held_out, report)
            sample = batches[0]
        for each in (model, new):
            each.to(dtype)
        found.speed = compare_speed(model, new, sample)
        _write(output, source, new, found)
    return found


def _open(name: str, how: Conversion, report: Callable[[str], object]) -> _Source:
    folder = RunFolder(Path(name))
    if folder.exists:
        if how.task is not None:
            raise UserError(f"got --task for {name}, which is a run; leave it out")
        info = folder.read_info()
        info["finished"] = folder.is_finished(info)
        if not info["finished"]:
            report(f"{name}: not trained to its end; neither is the new model")
        task = folder.read_task(info)
        model, own = folder.load(task, torch.device("cpu"))
        with user_errors():
            return _Source(convert(model, max_length=how.max_length), own, info, task)
    with user_errors():
        source = _Source(convert(name, max_length=how.max_length), None)
    try:
        with damage_reported(f"the tokenizer of {name}"):
            tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
            # Without files transformers makes an empty one, T5 with one token.
            if len(tokenizer) <= len(tokenizer.all_special_tokens) + 1:
                raise ValueError("its files are missing; expected them in the folder of the model")
    except UserError:
        # Only text needs one.
        if how.text is not None or how.task is not None:
            raise
        report(f"{name}: no tokenizer that can be loaded; the new model gets none")
        return source
    source.tokenizer = tokenizer
    if how.task is not None and how.data is not None:
        _make_run(name, source, how.task, how.data)
    return source


def _make_run(name: str, source: _Source, task: Task[Any, Any], data: Path) -> None:
    """Give a model and its tokenizer the form that they have in a run of a task."""
    kind, model, tokenizer, config = type(source.model), source.model, source.tokenizer, source.model.config
    if not isinstance(task, SequenceToSequence | LanguageModeling) or kind is not task.model_class:
        raise UserError(
            f"got --task {task.name} for {name}, a {kind.__name__}; expected a task of text generation with "
            "this class of model"
        )
    if not isinstance(tokenizer, PreTrainedTokenizerFast) or tokenizer.eos_token_id != config.eos_token_id:
        raise UserError(
            f"got --task for {name}, with a {type(tokenizer).__name__}; expected one of the tokenizers library, with "
            f"the end token of the model ({config.eos_token_id})"
        )
    # Rows of embeddings without a token, which fill up a multiple of 8 or 128, are dropped.
    ids = {*tokenizer.get_vocab().values(), config.pad_token_id or 0, config.decoder_start_token_id or 0}
    if not max(ids) < len(tokenizer) <= config.vocab_size:
        raise UserError(
            f"{name}: has token {max(ids)}, a tokenizer of {len(tokenizer)} and a model of {config.vocab_size} tokens; "
            "expected ids below the size of the tokenizer, which is at most that of the model"
        )
    task.check_requirements()
    source.task, source.tokenizer = task, task.adapt_tokenizer(tokenizer)
    model.resize_token_embeddings(len(tokenizer))
    config.bos_token_id = source.tokenizer.bos_token_id
    if config.pad_token_id is None:
        config.pad_token_id = tokenizer.eos_token_id
    reset_generation(task, model)
    source.info = {
        "task": task.name,
        "options": asdict(task),
        "data": portable_path(data_path({"data": data}, None)),
        "commands": [],
        "settings": Settings.of_model(config).to_dict(),
        "fingerprints": {},
    }


def _replace(
    name: str,
    model: SynthesizerPreTrainedModel,
    how: Conversion,
    batches: Sequence[Batch],
    held_out: Sequence[Batch],
    report: Callable[[str], object],
) -> tuple[ConversionReport, SynthesizerPreTrainedModel]:
    """The model with replaced heads, and what is known of it, measured on the part of the text that is held out."""
    tokens = [sum(int(batch["attention_mask"].sum()) for batch in part) for part in (batches, held_out)]
    report(f"calibrating on {tokens[0]:,} tokens; {tokens[1]:,} others are held out to measure and choose heads")
    loss = {"before": mean_loss(model, held_out)}
    if not math.isfinite(loss["before"]):
        raise UserError(
            f"got a loss of {loss['before']} for {name} on the held-out text; expected finite weights, and examples "
            "for which something is predicted"
        )
    function, fitted, layers = cast(str, how.synthesizer), fit(model, batches), attention_layers(model)
    if function == "factorized_random":
        fitted[function] = factorize(fitted["random"])
    divergences = measure_divergences(model, fitted, held_out)
    heads = [Head(index, head) for index, layer in enumerate(layers) for head in range(layer.module.num_heads)]
    increases: dict[Head, float] = {}
    if how.budget != 1:
        sample, count = list[Mapping[str, Tensor]](), 0
        while len(sample) < len(held_out) and count < _TOKENS:
            sample.append(held_out[len(sample)])
            count += int(sample[-1]["attention_mask"].sum())
        most = sum(allowed_heads(model, how.budget).values())
        with tqdm(total=most, desc="choosing heads", unit="head", disable=None, leave=False) as bar:
            heads, increases = choose_heads(
                model, fitted[function], sample, how.budget, lambda count: bar.update(count - bar.n)
            )
    new = replace_heads(model, fitted[function], function, heads)
    loss["calibrated"] = mean_loss(new, held_out)
    if how.distill_steps:
        with tqdm(total=how.distill_steps, desc="distilling", unit="step", disable=None, leave=False) as bar:
            distill(new, model, batches, how.distill_steps, progress=lambda error: bar.update())
        loss["distilled"] = mean_loss(new, held_out)
    places = [(layer.stack, layer.number) for layer in layers]
    found = ConversionReport(name, new.config.synthesizer, function, places, divergences, heads, increases, loss)
    return found, new


def _write(output: Path, source: _Source, new: SynthesizerPreTrainedModel, found: ConversionReport) -> None:
    with RunFolder(output.resolve()).written() as folder:
        if (tokenizer := source.tokenizer) is not None:
            tokenizer.model_max_length = min(tokenizer.model_max_length, new.config.max_position_embeddings)
            tokenizer.save_pretrained(folder.path)
        if source.info:
            info, settings = source.info, Settings.of_model(new.config).to_dict()
            # A run may be of another class of model, with fields that its settings do not have.
            settings = {name: settings[name] for name in ("synthesizer", "synthesizer_options", "model")}
            command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
            changed = {"commands": [*info["commands"], command], "settings": {**info["settings"], **settings}}
            folder.write_yaml("run.yaml", {**info, **changed, "converted_from": found.model})
        folder.write_json("report.json", found.to_dict())
        folder.save_model(new)
