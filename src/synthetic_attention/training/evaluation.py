"""Evaluate a trained run on a split, or generate text with it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..data.examples import OnLong
from ..errors import UserError
from ..tasks import get_task
from ..tasks.base import EvaluationLoop, Task, check_on_long, format_score
from ..tasks.generation import evaluation_config, generation_label, generation_settings
from ..tasks.language_modeling import LanguageModeling
from ..tasks.options import replace_options
from .device import choose_device, describe_device
from .failures import shortage_reported
from .run_folder import RunFolder, data_path

__all__ = [
    "continue_prompt",
    "describe_evaluation",
    "describe_training",
    "evaluate_run",
    "generate_chunks",
    "generate_lines",
]

_LESS_MEMORY = "use fewer --num-beams, or a device with more memory"


def evaluate_run(
    path: Path,
    *,
    data: Path | None = None,
    split: str = "test",
    on_long: OnLong = "error",
    device: str | None = None,
    bf16: bool = False,
    report: Callable[[str], object] = print,
    scoring: Mapping[str, Any] | None = None,
    **generation_options: Any,
) -> dict[str, Any]:
    """Score the best model of a run on a split, and write predictions and scores to the folder `evaluation` of the run.

    Args:
        data: the data; by default the data of training.
        on_long: how to handle inputs over the maximum length: "error", "truncate", or "split" into sentences.
        device: "cpu", "cuda:1" or another device of PyTorch; by default the accelerator if there is one, else the CPU.
        bf16: use bfloat16 weights.
        scoring: task options that replace those of training.
        report: receives a message if the files cannot be written; the scores are returned anyway.
        generation_options: fields of `GenerationConfig`, such as num_beams; None leaves one to the task.
    """
    run = RunFolder(path)
    info = run.read_info()
    task = replace_options(run.read_task(info), scoring or {})
    generation = evaluation_config(task, _given(generation_options))
    check_on_long(task, on_long)
    task.check_requirements()
    part = task.read(data_path(info, data), split)
    loop = _load(run, task, device, bf16)
    started = time.perf_counter()
    with shortage_reported(_LESS_MEMORY, lambda: "nothing was written"):
        evaluation = task.evaluate(loop, part, generation, on_long)
    seconds = time.perf_counter() - started
    labels = [generation_label(generation, on_long)] if generation else []
    labels += [f"{option}-{_digest(value)}" for option, value in _given(scoring or {}).items()]
    labels += ["bfloat16"] if bf16 else []
    name = ".".join([f"evaluation/{part.name}", _digest(part.fingerprint()), *labels])
    predictions = f"{name}.{evaluation.suffix}"
    results: dict[str, Any] = {
        "run": str(path),
        "task": task.name,
        "synthesizer": info["settings"]["synthesizer"],
        "split": part.name,
        "fingerprint": part.fingerprint(),
        "examples": evaluation.examples,
        **evaluation.scores,
        **(generation_settings(generation) if generation else {}),
        "on_long": on_long,
        "truncated": evaluation.truncated,
        "divided": evaluation.divided,
        "skipped": evaluation.skipped,
        "device": describe_device(loop.model.device),
        "dtype": "bfloat16" if bf16 else "float32",
        "seconds": round(seconds, 3),
        "examples_per_second": round(evaluation.answered / seconds, 2),
        "predictions": str(run.path / predictions),
    }
    # The scores may have taken hours: return them even if the run cannot be written.
    try:
        run.write_text(predictions, evaluation.predictions)
        run.write_json(f"{name}.json", results)
    except OSError as error:
        results.update(predictions=None)
        report(f"predictions and scores not written: {error}")
    return results


def generate_chunks(
    path: Path,
    chunks: Iterable[Sequence[str]],
    *,
    on_long: OnLong = "error",
    device: str | None = None,
    bf16: bool = False,
    **generation_options: Any,
) -> Iterator[tuple[list[str], int]]:
    """Generate one line per line, chunk by chunk; with each chunk the number of inputs that were truncated or split.

    The run is loaded before the first chunk is read. The options are those of `evaluate_run`.
    """
    run = RunFolder(path)
    task = run.read_task(run.read_info())
    generation = task.generation_config(_given(generation_options))
    check_on_long(task, on_long)
    loop = _load(run, task, device, bf16)
    first_line = 1
    for lines in chunks:
        with shortage_reported(_LESS_MEMORY, lambda: "there is no output for the lines from here on"):
            result = task.generate(loop, lines, generation, on_long, first_line=first_line)
        yield result
        first_line += len(lines)


def generate_lines(path: Path, lines: Sequence[str], **options: Any) -> tuple[list[str], int]:
    """`generate_chunks` of a single chunk."""
    (result,) = generate_chunks(path, [lines], **options)
    return result


def continue_prompt(
    path: Path,
    prompt: str,
    write: Callable[[str], object],
    *,
    device: str | None = None,
    bf16: bool = False,
    seed: int | None = None,
    **sampling_options: Any,
) -> None:
    """Write a language model's continuation of `prompt`, a few words at a time.

    Args:
        device, bf16: as for `evaluate_run`.
        seed: of the sampling; by default another one each time.
        sampling_options: temperature, top_k, top_p, max_new_tokens; None leaves one to the task.
    """
    run = RunFolder(path)
    task = run.read_task(run.read_info())
    if not isinstance(task, LanguageModeling):
        raise UserError(f"a run of task {task.name} continues no --prompt; only runs of language-modeling do")
    generation = task.generation_config({"do_sample": True, **_given(sampling_options)})
    if seed is not None and not 0 <= seed < 2**63:
        raise UserError(f"got seed {seed}; expected 0 … 2⁶³ − 1")
    loop = _load(run, task, device, bf16)
    with shortage_reported("use a device with more memory", lambda: "the text ends here"):
        torch.seed() if seed is None else torch.manual_seed(seed)
        task.stream_continuation(loop, prompt, generation, write)


def describe_evaluation(results: Mapping[str, Any]) -> str:
    """The results of `evaluate_run` for a terminal: scores, with signatures where they have one."""
    task = get_task(results["task"])
    beams = (
        f", {results['num_beams']} beams, length penalty {results['length_penalty']}" if "num_beams" in results else ""
    )
    skipped = f", {results['skipped']} malformed lines left out" if results["skipped"] else ""
    scores = [
        f"{label} {format_score(results[key])}  {results.get(f'{key}_signature', '')}".rstrip()
        for key, label in task.score_labels.items()
        if key in results
    ]
    scored = f"{results['examples']} {task.unit}" if results["examples"] else f"no {task.unit} with a label, no scores"
    lines = [
        f"{results['split']}: {scored}{beams}{skipped}",
        *(scores if results["examples"] else []),
        f"predictions: {results['predictions'] or 'not written'}",
    ]
    return "\n".join(lines)


def describe_training(metrics: Mapping[str, Any]) -> str:
    """metrics.json for a terminal: duration, speed, and the scores of the best model."""
    task = get_task(metrics["task"])
    speed = (
        f"{metrics['steps']} steps in {metrics['minutes']:.1f} minutes, {metrics['tokens_per_second']:,.0f} "
        f"{task.tokens_name}/s"
    )
    best = metrics["best"]
    if best is None:
        return f"{speed}; not validated yet"
    average = f" (average of the weights at {', '.join(map(str, best['averaged']))})" if "averaged" in best else ""
    scores = [f"{label} {format_score(best[key])}" for key, label in task.score_labels.items() if key in best]
    return f"{speed}; best at step {best['step']}{average}: validation {', '.join(scores)}"


def _load(run: RunFolder, task: Task[Any, Any], device: str | None, bf16: bool) -> EvaluationLoop:
    model, tokenizer = run.load(task, choose_device(device), torch.bfloat16 if bf16 else torch.float32)
    return EvaluationLoop(model, tokenizer)


def _digest(value: Any) -> str:
    """A few letters that tell data or options apart."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:8]


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
