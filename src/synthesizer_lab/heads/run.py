"""The command `convert`: open a model, replace its heads, write the new model and a report."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

import torch
from huggingface_hub import snapshot_download
from rich.table import Table
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerFast, set_seed

from synthetic_attention.conversion.convert import convert
from synthetic_attention.conversion.synthesize import synthesize
from synthetic_attention.models import SynthesizerModel, SynthesizerPreTrainedModel
from synthetic_attention.models.cache import cache_bytes
from synthetic_attention.validation import fits

from ..attention.fitting import FUNCTIONS, explained, factorize, fit, measure_divergences
from ..attention.layers import AttentionLayer, Batch, attention_layers, mean_loss, run
from ..benchmark.harness import time_turns
from ..errors import UserError, damage_reported, user_errors
from ..tasks.base import Task, reset_generation
from ..tasks.language_modeling import LanguageModeling
from ..tasks.seq2seq import SequenceToSequence
from ..training.device import choose_device, shortage_reported
from ..training.run import command_line
from ..training.run_folder import RunFolder, data_path, portable_path
from ..training.settings import Settings
from .choose import Budget, Head, allowed_heads, choose_heads, replace_heads
from .distill import distill
from .text import read_batches

_CALIBRATED = (*FUNCTIONS, "factorized_random")
# Heads are chosen by their loss on so many tokens of the text: every head is measured, several times.
_TOKENS = 4096
# What sentence-transformers reads besides the model: pooling, normalization, the longest input.
_SENTENCE_FILES = ("modules.json", "*sentence*.json", "[1-9]_*/*")
# Generation is timed with up to so many rows, tokens of a causal model's prompt, and new tokens.
_ROWS, _PROMPT, _NEW = 32, 8, 32
_REPEATS = 5


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """What to convert a model to.

    Attributes:
        synthesizer: for all layers; with `text` the function of the replaced heads.
        synthesizer_options: options by function, for a conversion without text; None for those of the model.
        text: to calibrate on, of a run data as `train` reads it, of another model a file with an input per line; None
            for parameters drawn as in a new model.
        examples: the number of examples of the text: of a run drawn at random, of a file the first lines.
        batch_tokens: tokens of a batch of the text, source and target together.
        budget: the share of the heads of self-attention to replace, of all or by stack.
        distill_steps: updates of the new parameters, after calibration.
        max_length: the new model's longest sequence; by default the model's.
        task, data: of a model that is no run: the result is a run of this task, with this data.
    """

    synthesizer: str | list[str] | dict[str, Any]
    synthesizer_options: Mapping[str, Mapping[str, Any]] | None = None
    text: Path | None = None
    examples: int = 1000
    batch_tokens: int = 2048
    budget: Budget = 1.0
    distill_steps: int = 0
    max_length: int | None = None
    seed: int = 0
    task: Task | None = None
    data: Path | None = None

    def __post_init__(self) -> None:
        shares = [*self.budget.values()] if isinstance(self.budget, Mapping) else [self.budget]
        if not (all(fits(share, float) and 0 <= share <= 1 for share in shares) and any(shares)):
            raise UserError(
                f"got --budget {self.budget}; expected a share of the heads, above 0 and up to 1, such as 0.5, or "
                "{encoder: 0.75, decoder: 0.5}"
            )
        if self.text is None and (self.budget != 1 or self.distill_steps):
            raise UserError("got --budget or --distill-steps without --calibrate; expected the text to measure on")
        if (self.task is None) != (self.data is None):
            raise UserError(f"got --{'data' if self.task is None else 'task'} alone; expected --task and --data")
        if self.text is not None and (self.synthesizer not in _CALIBRATED or self.synthesizer_options):
            raise UserError(
                f"got --calibrate for {self.synthesizer!r}{' with options' if self.synthesizer_options else ''}; "
                f"expected one of: {', '.join(_CALIBRATED)}, without options"
            )


def convert_to(
    name: str, output: Path, how: Conversion, *, device: str | None = None, report: Callable[[str], object] = print
) -> dict[str, Any]:
    """Convert a model and write the new one, its tokenizer and report.json to a new folder.

    Args:
        name: the folder of a run, or what `convert` takes. The result of a run is a folder that commands take as a run.
        output: written at the end, in one step.
        device: as for `choose_device`.
        report: called with each line for the user.

    Returns:
        The content of report.json.

    Raises:
        UserError: the model cannot be converted, or the text or the folder cannot be used.
    """
    RunFolder(output).check_new()
    place = choose_device(device)
    if place.index is not None:
        torch.accelerator.set_device_index(place.index)
    set_seed(how.seed)
    model, tokenizer, task, info = _open(name, how, report)
    source = Path(name)
    if not source.is_dir():
        # Before the long work: the hub may not be there later.
        with user_errors():
            source = Path(snapshot_download(name, allow_patterns=[*_SENTENCE_FILES]))
    dtype = model.dtype
    # Mean attention and its logarithm need more digits than half precision has.
    model.eval().to(place, torch.float32)
    advice = "give a shorter text, a smaller --batch-tokens or --max-length, or a device with more memory"
    with shortage_reported(advice, lambda: "nothing was written"):
        if how.text is None:
            with user_errors():
                new = synthesize(model, how.synthesizer, synthesizer_options=how.synthesizer_options)
            found: dict[str, Any] = {"function": None, "replaced_heads": 0, "loss": {}, "heads": []}
            ids = torch.randint(model.config.vocab_size, (8, min(16, model.config.max_position_embeddings)))
            sample: Batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        else:
            if isinstance(model, SynthesizerModel) and model.config.is_encoder_decoder:
                raise UserError(f"got --calibrate for {name}, a decoder without a head; expected one that generates")
            # Before the text is read, which can take long.
            allowed_heads(model, how.budget)
            batches, held_out = read_batches(model, tokenizer, how.text, task, how.examples, how.batch_tokens)
            new, found = _replace(name, model, how, batches, held_out, report)
            sample = batches[0]
        for each in (model, new):
            each.to(dtype)
        found = {"model": name, "synthesizer": new.config.synthesizer, **compare_speed(model, new, sample), **found}
        _write(output, source, new, tokenizer, info, found)
    return found


def _open(name: str, how: Conversion, report: Callable[[str], object]) -> tuple[Any, Any, Any, dict[str, Any]]:
    """A model with vanilla in all layers, its tokenizer if any, and task and info of a run."""
    folder = RunFolder.find(name)
    if folder.exists:
        if how.task is not None:
            raise UserError(f"got --task for {name}, which is a run; leave it out")
        info = folder.read_info()
        info["finished"] = folder.is_finished(info)
        if not info["finished"]:
            report(f"{name}: not trained to its end; neither is the new model")
        task = folder.read_task(info)
        model, tokenizer = folder.load(task, torch.device("cpu"))
        with user_errors():
            return convert(model, max_length=how.max_length), tokenizer, task, info
    with user_errors():
        model = convert(name, max_length=how.max_length)
    try:
        with damage_reported(f"the tokenizer of {name}"):
            found = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
            # Without files transformers makes an empty one, T5 with one token.
            if len(found) <= len(found.all_special_tokens) + 1:
                raise ValueError("its files are missing; expected them in the folder of the model")
    except UserError:
        # Only text needs one.
        if how.text is not None or how.task is not None:
            raise
        report(f"{name}: no tokenizer that can be loaded; the new model gets none")
        return model, None, None, {}
    if how.task is None or how.data is None:
        return model, found, None, {}
    tokenizer, info = _make_run(name, model, found, how.task, how.data)
    return model, tokenizer, how.task, info


def _make_run(
    name: str, model: Any, tokenizer: Any, task: Task, data: Path
) -> tuple[PreTrainedTokenizerFast, dict[str, Any]]:
    """Give a model the form that it has in a run of a task; the tokenizer and the info of this run."""
    kind, config = type(model), model.config
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
    adapted = task.adapt_tokenizer(tokenizer)
    model.resize_token_embeddings(len(tokenizer))
    config.bos_token_id = adapted.bos_token_id
    if config.pad_token_id is None:
        config.pad_token_id = tokenizer.eos_token_id
    reset_generation(task, model)
    info = {
        "task": task.name,
        "options": asdict(task),
        "data": portable_path(data_path({"data": data}, None)),
        "commands": [],
        "settings": Settings.of_model(config).to_dict(),
        "fingerprints": {},
    }
    return adapted, info


def _replace(
    name: str,
    model: SynthesizerPreTrainedModel,
    how: Conversion,
    batches: Sequence[Batch],
    held_out: Sequence[Batch],
    report: Callable[[str], object],
) -> tuple[SynthesizerPreTrainedModel, dict[str, Any]]:
    """The model with replaced heads, and what the report says of them, measured on the text that is held out."""
    fit_on, tokens = ([int(batch["attention_mask"].sum()) for batch in part] for part in (batches, held_out))
    report(f"calibrating on {sum(fit_on):,} tokens; {sum(tokens):,} others are held out to measure and choose heads")
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
        read = [0, *accumulate(tokens)]
        sample = [batch for batch, before in zip(held_out, read[:-1], strict=True) if before < _TOKENS]
        heads, increases = choose_heads(model, fitted[function], sample, how.budget)
    new = replace_heads(model, fitted[function], function, heads)
    loss["calibrated"] = mean_loss(new, held_out)
    if how.distill_steps:
        distill(new, model, batches, how.distill_steps)
        loss["distilled"] = mean_loss(new, held_out)
    return new, {
        "function": function,
        "replaced_heads": len(heads),
        "loss": {part: finite(value) for part, value in loss.items()},
        "heads": describe_heads(layers, divergences, heads, increases),
    }


def _write(
    output: Path,
    source: Path,
    new: SynthesizerPreTrainedModel,
    tokenizer: Any,
    info: dict[str, Any],
    report: dict[str, Any],
) -> None:
    with RunFolder(output.resolve()).written() as folder:
        if tokenizer is not None:
            tokenizer.model_max_length = min(tokenizer.model_max_length, new.config.max_position_embeddings)
            tokenizer.save_pretrained(folder.path)
        if info:
            settings = Settings.of_model(new.config).to_dict()
            # A run may be of another class of model, with fields that its settings do not have.
            settings = {name: settings[name] for name in ("synthesizer", "synthesizer_options", "model")}
            changed = {"commands": [*info["commands"], command_line()], "settings": {**info["settings"], **settings}}
            folder.write_yaml("run.yaml", {**info, **changed, "converted_from": report["model"]})
        folder.write_json("report.json", report)
        _copy_sentence_files(source, folder.path, new.config.max_position_embeddings)
        folder.save_model(new)


def _copy_sentence_files(source: Path, target: Path, longest: int) -> None:
    if (source / "modules.json").is_file():
        for path in (path for pattern in _SENTENCE_FILES for path in source.glob(pattern) if path.is_file()):
            new = target / path.relative_to(source)
            new.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, new)
        if (limits := target / "sentence_bert_config.json").exists():
            with damage_reported(source / limits.name):
                values = json.loads(limits.read_text(encoding="utf-8"))
                values["max_seq_length"] = min(values.get("max_seq_length") or longest, longest)
            limits.write_text(json.dumps(values, indent=2), encoding="utf-8")


def describe_heads(
    layers: Sequence[AttentionLayer],
    divergences: Sequence[Mapping[str, Tensor]],
    replaced: Sequence[Head],
    increases: Mapping[Head, float],
) -> list[dict[str, Any]]:
    """A row for each head; they count from 1, as layers do.

    Args:
        divergences: of each layer, see `measure_divergences`.
        increases: of the loss, if this head alone is replaced; empty if all heads are replaced.
    """
    rows = []
    for index, (layer, found) in enumerate(zip(layers, divergences, strict=True)):
        for number, shares in enumerate(explained(found)):
            head = Head(index, number)
            place = {"stack": layer.stack, "layer": layer.number, "head": number + 1, "replaced": head in replaced}
            loss = {"loss_increase": finite(increases[head])} if increases else {}
            divergence = {name: float(each[number]) for name, each in found.items()}
            rows.append({**place, **shares, **loss, "divergence": divergence})
    return rows


def make_table(report: Mapping[str, Any]) -> Table:
    """Both models of a report."""
    table = Table("", "before", "after", box=None, pad_edge=False)
    for stack in dict.fromkeys(row["stack"] for row in report["heads"]):
        replaced = [row["replaced"] for row in report["heads"] if row["stack"] == stack]
        table.add_row(f"heads replaced, {stack}", "", f"{sum(replaced)} of {len(replaced)}")
    if losses := {name: math.nan if loss is None else loss for name, loss in report["loss"].items()}:
        after = ", ".join(f"{loss:.4f} {name}" for name, loss in losses.items() if name != "before")
        table.add_row("loss on held-out text", f"{losses['before']:.4f}", after)
    before, after = report["before"], report["after"]
    times = [f"{each['milliseconds']:.1f} ms" for each in (before, after)]
    table.add_row(report["timed"], times[0], f"{times[1]} ({report['speedup']:.2f} times as fast)")
    if before["cache_bytes"]:
        table.add_row("cache of these", *(f"{each['cache_bytes'] / 2**20:.2f} MiB" for each in (before, after)))
    return table


@torch.no_grad()
def compare_speed(
    before: SynthesizerPreTrainedModel, after: SynthesizerPreTrainedModel, batch: Batch
) -> dict[str, Any]:
    """The time of both models, turn by turn, for the rows of a batch: of generation, or else of a forward.

    For both "milliseconds", "cache_bytes" and "parameters"; what was "timed", and the "speedup".
    """
    models: dict[str, Any] = {"before": before, "after": after}
    inputs = {name: batch[name][:_ROWS].to(before.device) for name in ("input_ids", "attention_mask")}
    longest, is_pair, sizes = before.config.max_position_embeddings, before.config.is_encoder_decoder, dict[str, int]()
    if before.can_generate():
        if not is_pair:
            # Half of the maximum length at most is prompt.
            inputs = {name: each[:, : min(_PROMPT, max(1, longest // 2))] for name, each in inputs.items()}
        new = max(1, min(_NEW, longest - (1 if is_pair else inputs["input_ids"].shape[1])))
        # Whatever the model's own settings are.
        settings = {"do_sample": False, "num_beams": 1, "use_cache": True, "num_return_sequences": 1}
        settings |= {"min_new_tokens": new, "max_new_tokens": new, "return_dict_in_generate": True}
        turns = {name: partial(model.generate, **inputs, **settings) for name, model in models.items()}
        sizes = {name: cache_bytes(generate().past_key_values) for name, generate in turns.items()}
        timed = f"generation of {len(inputs['input_ids'])} × {new} tokens"
    else:
        inputs |= {"decoder_input_ids": inputs["input_ids"]} if is_pair else {}
        turns = {name: partial(run, model, inputs) for name, model in models.items()}
        timed = f"forward of {len(inputs['input_ids'])} rows"
    times = {name: quartiles[1] for name, (quartiles, _) in time_turns(turns, _REPEATS, 1, before.device.type).items()}
    figures = {
        name: {"milliseconds": times[name], "cache_bytes": sizes.get(name, 0), "parameters": model.num_parameters()}
        for name, model in models.items()
    }
    return {"timed": timed, "speedup": times["before"] / times["after"], **figures}


def finite(number: float) -> float | None:
    """JSON has no other numbers."""
    return number if math.isfinite(number) else None
