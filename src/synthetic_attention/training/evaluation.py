"""Use a trained run: score it on a split, or translate lines."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from ..tasks import get_task
from ..tasks.translation import ParallelText
from .failures import shortage_reported
from .generation import translate
from .run_folder import RunFolder, data_folder

__all__ = ["evaluate_run", "generate_chunks", "generate_lines"]


def evaluate_run(
    path: Path,
    *,
    data: Path | None = None,
    split: str = "test",
    beams: int = 4,
    length_penalty: float = 0.6,
    truncate: bool = False,
    report: Callable[[str], object] = print,
) -> dict[str, Any]:
    """Score the best model of a run on a split, and write predictions and scores under evaluation/ of the run.

    Every line is translated; pairs with a blank side are not scored, as they are not in validation.

    Args:
        data: the folder of the data; by default that which the run was trained on.
        truncate: cut sources that are too long for the model, rather than refuse them.
        report: gets a line where the files cannot be written; the scores are returned all the same.

    Raises:
        UserError: the run, the data or an option cannot be used.
    """
    run = RunFolder(path)
    info = run.read_info()
    task = get_task(info["task"])(info["source"], info["target"])
    task.scorers()
    text = task.read(data_folder(info, data), split)
    model, tokenizer = run.load(_device())
    started = time.perf_counter()
    with shortage_reported("use fewer --beams", lambda: "nothing was written"):
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
    rows = text.complete()
    name = f"evaluation/{text.name}.{_digest(text)}.beam{beams}.penalty{length_penalty:g}"
    results: dict[str, Any] = {
        "run": str(path),
        "task": task.name,
        "synthesizer": info["settings"]["synthesizer"],
        "split": text.name,
        "fingerprint": text.fingerprint(),
        "sentences": len(rows),
        **task.score([predictions[row] for row in rows], [text.targets[row] for row in rows]),
        "beams": beams,
        "length_penalty": length_penalty,
        "truncated": truncated,
        "seconds": round(seconds, 3),
        "sentences_per_second": round(len(predictions) / seconds, 2),
        "predictions": str(run.path / f"{name}.{task.target}"),
    }
    # The scores may have taken hours: a run that cannot be written to must not cost them.
    try:
        run.write_text(f"{name}.{task.target}", "".join(f"{line}\n" for line in predictions))
        run.write_json(f"{name}.json", results)
    except OSError as error:
        results["predictions"] = None
        report(f"predictions and scores not written: {error}")
    return results


def _digest(text: ParallelText) -> str:
    """A few letters that tell data of the same name apart."""
    return hashlib.sha256(repr(text.fingerprint()).encode()).hexdigest()[:8]


def generate_chunks(
    path: Path,
    chunks: Iterable[Sequence[str]],
    *,
    beams: int = 4,
    length_penalty: float = 0.6,
    truncate: bool = False,
) -> Iterator[tuple[list[str], int]]:
    """For each chunk of lines: a line for each line, in order, and how many were truncated.

    The run is loaded before the first chunk is asked for.

    Raises:
        UserError: the run or an option cannot be used, or a line is too long and `truncate` is off.
    """
    run = RunFolder(path)
    get_task(run.read_info()["task"])
    model, tokenizer = run.load(_device())
    first_line = 1
    for lines in chunks:
        with shortage_reported("use fewer --beams", lambda: "lines from here on are not translated"):
            result = translate(
                model,
                tokenizer,
                lines,
                beams=beams,
                length_penalty=length_penalty,
                truncate=truncate,
                first_line=first_line,
            )
        yield result
        first_line += len(lines)


def generate_lines(
    path: Path, lines: Sequence[str], *, beams: int = 4, length_penalty: float = 0.6, truncate: bool = False
) -> tuple[list[str], int]:
    """A line for each line, in order, and how many were truncated; `generate_chunks` of one chunk."""
    (result,) = generate_chunks(path, [lines], beams=beams, length_penalty=length_penalty, truncate=truncate)
    return result


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
