"""Use a trained run: score it on a split, or generate from lines."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..tasks.types import Split
from .device import choose_device, choose_dtype, describe_device
from .failures import shortage_reported
from .run_folder import RunFolder, data_path

__all__ = ["continue_prompt", "evaluate_run", "generate_chunks", "generate_lines"]

_LESS_MEMORY = "use fewer --beams, or a device that has more"


def evaluate_run(
    path: Path,
    *,
    data: Path | None = None,
    split: str = "test",
    truncate: bool = False,
    device: str | None = None,
    dtype: str = "float32",
    report: Callable[[str], object] = print,
    scoring: Mapping[str, Any] | None = None,
    **search_options: Any,
) -> dict[str, Any]:
    """Score the best model of a run on a split, and write predictions and scores under evaluation/ of the run.

    Args:
        data: the data; by default that which the run was trained on.
        truncate: cut inputs that are too long for the model, rather than refuse them.
        device: "cpu", "cuda:1" or what else PyTorch has; by default the accelerator that is there, or else the CPU.
        dtype: of the weights and of all that is computed from them: "float32" or "bfloat16".
        scoring: options of the task's scoring that are others than in training.
        report: gets a line where the files cannot be written; the scores are returned all the same.
        search_options: for tasks that generate text, those of `BeamSearch`; one that is None is left to the task.

    Raises:
        UserError: the run, the data or an option cannot be used.
    """
    run = RunFolder(path)
    info = run.read_info()
    task = run.read_task(info).scored_with(scoring or {})
    search = task.search(_given(search_options))
    task.check()
    part = task.read(data_path(info, data), split)
    model, tokenizer = run.load(task, choose_device(device), choose_dtype(dtype))
    started = time.perf_counter()
    with shortage_reported(_LESS_MEMORY, lambda: "nothing was written"):
        evaluation = task.evaluate(model, tokenizer, part, search, truncate)
    seconds = time.perf_counter() - started
    given = [f"{option}-{_short(value)}" for option, value in (scoring or {}).items() if value is not None]
    how = [*([search.label] if search else []), *given, *([] if dtype == "float32" else [dtype])]
    name = ".".join([f"evaluation/{part.name}", _digest(part), *how])
    predictions = f"{name}.{evaluation.suffix}"
    results: dict[str, Any] = {
        "run": str(path),
        "task": task.name,
        "synthesizer": info["settings"]["synthesizer"],
        "split": part.name,
        "fingerprint": part.fingerprint(),
        "examples": evaluation.examples,
        **evaluation.scores,
        **(search.to_dict() if search else {}),
        "truncated": evaluation.truncated,
        "divided": evaluation.divided,
        "skipped": evaluation.skipped,
        "device": describe_device(model.device),
        "dtype": dtype,
        "seconds": round(seconds, 3),
        "examples_per_second": round(evaluation.answered / seconds, 2),
        "predictions": str(run.path / predictions),
        "files": [str(run.path / f"{name}.{ending}") for ending in evaluation.files],
    }
    # The scores may have taken hours: a run that cannot be written to must not cost them.
    try:
        run.write_text(predictions, evaluation.predictions)
        for ending, content in evaluation.files.items():
            run.write_text(f"{name}.{ending}", content)
        run.write_json(f"{name}.json", results)
    except OSError as error:
        results.update(predictions=None, files=[])
        report(f"predictions and scores not written: {error}")
    return results


def _digest(split: Split) -> str:
    """A few letters that tell data of the same name apart."""
    return _short(split.fingerprint())


def _short(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:8]


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def generate_chunks(
    path: Path,
    chunks: Iterable[Sequence[str]],
    *,
    truncate: bool = False,
    device: str | None = None,
    dtype: str = "float32",
    **search_options: Any,
) -> Iterator[tuple[list[str], int]]:
    """For each chunk of lines: a line for each line, in order, and how many were too long, so truncated or divided.

    The run is loaded before the first chunk is asked for. The options are those of `evaluate_run`.

    Raises:
        UserError: the run or an option cannot be used, or a line is too long and `truncate` is off.
    """
    run = RunFolder(path)
    task = run.read_task(run.read_info())
    search = task.line_search(_given(search_options))
    model, tokenizer = run.load(task, choose_device(device), choose_dtype(dtype))
    first_line = 1
    for lines in chunks:
        with shortage_reported(_LESS_MEMORY, lambda: "lines from here on are not answered"):
            result = task.generate(model, tokenizer, lines, search, truncate, first_line=first_line)
        yield result
        first_line += len(lines)


def generate_lines(
    path: Path,
    lines: Sequence[str],
    *,
    truncate: bool = False,
    **search_options: Any,
) -> tuple[list[str], int]:
    """A line for each line, in order, and how many were too long; `generate_chunks` of one chunk."""
    (result,) = generate_chunks(path, [lines], truncate=truncate, **search_options)
    return result


def continue_prompt(
    path: Path,
    prompt: str,
    write: Callable[[str], object],
    *,
    device: str | None = None,
    dtype: str = "float32",
    **sampling_options: Any,
) -> None:
    """Write what a language model says after `prompt`, a few words at a time.

    Args:
        device, dtype: as for `evaluate_run`.
        sampling_options: those of `Sampling`; one that is None is left to the task.

    Raises:
        UserError: the run continues no prompt, or it or an option cannot be used, or the prompt is too long.
    """
    run = RunFolder(path)
    task = run.read_task(run.read_info())
    sampling = task.sampling(_given(sampling_options))
    model, tokenizer = run.load(task, choose_device(device), choose_dtype(dtype))
    with shortage_reported("use a device that has more", lambda: "the text ends here"):
        task.continue_prompt(model, tokenizer, prompt, sampling, write)
