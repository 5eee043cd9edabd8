"""Use a trained run: score it on a split, or translate lines."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..tasks import get_task
from .generation import translate
from .run_folder import RunFolder

__all__ = ["evaluate_run", "generate_lines"]


def evaluate_run(
    path: Path,
    *,
    data: Path | None = None,
    split: str = "test",
    beams: int = 4,
    length_penalty: float = 0.6,
    truncate: bool = False,
) -> dict[str, Any]:
    """Score the best model of a run on a split, and write predictions and scores under evaluation/ of the run.

    Args:
        data: the folder of the data; by default that which the run was trained on.
        truncate: cut sources that are too long for the model, rather than refuse them.

    Raises:
        UserError: the run, the data or an option cannot be used.
    """
    run = RunFolder(path)
    info = run.read_info()
    task = get_task(info["task"])(info["source"], info["target"])
    text = task.read(data or Path(info["data"]), split)
    model, tokenizer = run.load_model(_device()), run.load_tokenizer()
    started = time.perf_counter()
    predictions, truncated = translate(
        model,
        tokenizer,
        text.sources,
        beams=beams,
        length_penalty=length_penalty,
        truncate=truncate,
        where=f"{text.name}.{task.source}",
    )
    seconds = time.perf_counter() - started
    name = f"evaluation/{text.name}.beam{beams}"
    written = run.write_text(f"{name}.{task.target}", "".join(f"{line}\n" for line in predictions))
    results = {
        "run": str(path),
        "task": task.name,
        "synthesizer": info["settings"]["synthesizer"],
        "split": text.name,
        "sentences": len(predictions),
        **task.score(predictions, text.targets),
        "beams": beams,
        "length_penalty": length_penalty,
        "truncated": truncated,
        "seconds": round(seconds, 3),
        "sentences_per_second": round(len(predictions) / seconds, 2),
        "predictions": str(written),
    }
    run.write_json(f"{name}.json", results)
    return results


def generate_lines(
    path: Path, lines: Sequence[str], *, beams: int = 4, length_penalty: float = 0.6, truncate: bool = False
) -> tuple[list[str], int]:
    """A line for each line, in order, and how many were truncated.

    Raises:
        UserError: the run or an option cannot be used, or a line is too long and `truncate` is off.
    """
    run = RunFolder(path)
    get_task(run.read_info()["task"])
    model, tokenizer = run.load_model(_device()), run.load_tokenizer()
    return translate(model, tokenizer, lines, beams=beams, length_penalty=length_penalty, truncate=truncate)


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
