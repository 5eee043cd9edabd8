"""Evaluate a trained run on a split, or generate text with it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch

from ..data.examples import OnLongInput
from ..errors import NoSplitError, UserError, damage_reported
from ..tasks import get_task, make_task
from ..tasks.base import EvaluationLoop, Task, format_score, tokens_name
from ..tasks.classification import Classification, TextSplit
from ..tasks.generation import evaluation_config, generation_label, generation_settings
from .device import choose_device, describe_device, shortage_reported
from .model_card import update_model_card
from .run_folder import RunFolder, data_path, portable_path

_LESS_MEMORY = "use a device with more memory, or for generated text fewer --num-beams"


def evaluate_run(
    path: str | Path,
    *,
    data: Path | None = None,
    split: str = "test",
    on_long: OnLongInput = "error",
    device: str | None = None,
    bf16: bool = False,
    report: Callable[[str], object] = print,
    scoring: Mapping[str, Any] | None = None,
    **generation_options: Any,
) -> dict[str, Any]:
    """Score the best model of a run on a split, and write predictions and scores to the folder `evaluation` of the run.

    For a run of the hub the folder is ./OWNER--NAME/evaluation.

    Args:
        path: the folder, or OWNER/NAME of a run on the hub.
        data: the data; by default the data of training.
        on_long: how to handle inputs over the maximum length: "error" or "truncate".
        device: "cpu", "cuda:1" or another device of PyTorch; by default the accelerator if there is one, else the CPU.
        bf16: use bfloat16, for weights too.
        report: receives a message if the files cannot be written; the scores are returned anyway.
        scoring: the task's `evaluation_options` that replace those of training.
        generation_options: fields of `GenerationConfig`, such as num_beams.
    """
    run = RunFolder.find(path)
    info, written = run.read_info(), RunFolder(run.results)
    task = run.read_task(info)
    if wrong := (scoring or {}).keys() - task.evaluation_options:
        known = ", ".join(sorted(task.evaluation_options)) or "none"
        raise UserError(
            f"got --{', --'.join(sorted(wrong))}; expected options of an evaluation of {task.name}: {known}"
        )
    task = make_task(task.name, {**asdict(task), **(scoring or {})})
    generation = evaluation_config(task, generation_options)
    task.check_requirements()
    path_of_data = data_path(info, data)
    name_of_data = info["data"] if data is None else portable_path(data)
    is_file = isinstance(task, Classification) and path_of_data.is_file()
    if is_file and name_of_data != info["data"] and not _is_trained_on(task, path_of_data, info):
        task = make_task(task.name, {**asdict(task), "held_out": 0.0})
    try:
        part = task.records(path_of_data, split).load()
    except NoSplitError as error:
        raise NoSplitError(f"{error}; pass --split with a split that is there") from None
    if isinstance(part, TextSplit) and part.classes is None and part.task.class_names:
        # The training data, if it is still there, tells which labels have these names.
        with suppress(UserError, OSError):
            trained = cast(Classification, run.read_task(info))
            if classes := trained.training_classes(data_path(info, None)):
                part = part.with_classes(classes)
    with shortage_reported(_LESS_MEMORY, lambda: "nothing was written"):
        loop = EvaluationLoop(*run.load(task, choose_device(device), bf16), generation=generation, on_long=on_long)
        started = time.perf_counter()
        evaluation = task.evaluate(loop, part)
    seconds = time.perf_counter() - started
    labels = [part.name, _digest(part.fingerprint())]
    labels += [generation_label(generation)] if generation else []
    labels += [f"{option}-{_digest(value)}" for option, value in (scoring or {}).items() if value is not None]
    labels += ["bfloat16"] if bf16 else []
    name = f"evaluation/{'.'.join(labels)}"
    predictions = None if evaluation.predictions is None else f"{name}.{evaluation.suffix}"
    results: dict[str, Any] = {
        "run": str(path),
        "task": task.name,
        "synthesizer": info["settings"]["synthesizer"],
        "data": name_of_data,
        "split": part.name,
        "fingerprint": part.fingerprint(),
        "examples": evaluation.examples,
        **evaluation.scores,
        **(generation_settings(generation) if generation else {}),
        "on_long": on_long,
        "truncated": evaluation.truncated,
        "skipped": evaluation.skipped,
        "device": describe_device(loop.model.device),
        "dtype": "bfloat16" if bf16 else "float32",
        "seconds": round(seconds, 3),
        "examples_per_second": round((evaluation.examples or len(part)) / seconds, 2),
        "predictions": predictions and str(written.path / predictions),
    }
    # The scores may have taken hours: return them even if the run cannot be written.
    try:
        if evaluation.predictions is not None:
            written.write_text(str(predictions), evaluation.predictions)
        written.write_json(f"{name}.json", results)
    except OSError as error:
        results.update(predictions=None)
        report(f"predictions and scores not written: {error}")
    try:
        if not run.hub_name and (metrics := run.read_metrics()):
            with damage_reported(f"the scores of {run.path}/metrics.json"):
                update_model_card(run, metrics)
    except (UserError, OSError) as error:
        report(f"README.md not written: {error}")
    return results


def _is_trained_on(task: Task, data: Path, info: Mapping[str, Any]) -> bool:
    """Whether a file has the training data of a run, under whatever name."""
    with suppress(UserError):
        found = task.records(data, "train").load().fingerprint()
        return bool(found["sha256"] == info["fingerprints"]["train"]["sha256"])
    return False


def generate_chunks(
    path: str | Path,
    chunks: Iterable[Sequence[str]],
    *,
    on_long: OnLongInput = "error",
    device: str | None = None,
    bf16: bool = False,
    seed: int | None = None,
    **generation_options: Any,
) -> Iterator[tuple[list[str], int]]:
    """Generate one line per line, chunk by chunk; with each chunk the number of truncated inputs.

    The run is loaded before the first chunk is read. The options are those of `evaluate_run`; with `do_sample=True`
    also `temperature`, `top_k` and `top_p`. Without a seed, each call samples anew.
    """
    run = RunFolder.find(path)
    task = run.read_task(run.read_info())
    generation = task.generation_config(generation_options)
    with shortage_reported(_LESS_MEMORY, lambda: "there is no output"):
        loop = EvaluationLoop(*run.load(task, choose_device(device), bf16), generation=generation, on_long=on_long)
    if generation is not None and generation.do_sample:
        torch.seed() if seed is None else torch.manual_seed(seed)
    first_line = 1
    for lines in chunks:
        with shortage_reported(_LESS_MEMORY, lambda: "there is no output for the lines from here on"):
            result = task.generate(loop, lines, first_line)
        yield result
        first_line += len(lines)


def describe_evaluation(results: Mapping[str, Any]) -> str:
    """The results of `evaluate_run` for a terminal: scores, with signatures where they have one."""
    task = get_task(results["task"])
    scored = f"{results['examples']} {task.unit}" if results["examples"] else f"no {task.unit} with a label, no scores"
    lines = [f"{results['split']}: {scored}"]
    if "num_beams" in results:
        beams = f"{results['num_beams']} beams, length penalty {results['length_penalty']}"
        lines[0] += ", greedy" if results["num_beams"] == 1 else f", {beams}"
    if results["skipped"]:
        lines[0] += f", {results['skipped']} malformed lines left out"
    for key, label in task.score_labels.items():
        if results["examples"] and key in results:
            lines.append(f"{label} {format_score(results[key])}  {results.get(f'{key}_signature', '')}".rstrip())
    if results["predictions"]:
        lines.append(f"predictions: {results['predictions']}")
    return "\n".join(lines)


def describe_training(metrics: Mapping[str, Any]) -> str:
    """metrics.json for a terminal: duration, speed, and the scores of the best model."""
    task = get_task(metrics["task"])
    minutes, best = metrics["minutes"], metrics["best"]
    duration = f"{minutes:.1f} minutes" if minutes >= 1 else f"{60 * minutes:.1f} seconds"
    speed = f"{metrics['steps']} steps in {duration}, {metrics['tokens_per_second']:,.0f} {tokens_name(task)}/s"
    if best is None:
        return f"{speed}; not validated yet"
    average = f" (average of the weights at {', '.join(map(str, best['averaged']))})" if "averaged" in best else ""
    scores = [f"{label} {format_score(best[key])}" for key, label in task.score_labels.items() if key in best]
    return f"{speed}; best at step {best['step']}{average}: validation {', '.join(scores)}"


def _digest(value: Any) -> str:
    """A few letters that tell data or options apart."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:8]
