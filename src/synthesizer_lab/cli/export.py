"""synthesizer export RUN."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Literal

from typer import echo

from ..errors import user_errors
from .console import set_up_libraries
from .options import argument, option


def export(
    *,
    run: str = argument("RUN", "Folder of a trained run, or the name of one on the hub."),
    output: Path = option("File to write.", ..., metavar="FILE"),
    kind: Literal["onnx", "torch"] = option("An ONNX file, or a program of torch.export.", "onnx", name="--format"),
    with_cache: bool = option("Decode step by step (ONNX only); an encoder-decoder gives two files.", False),
    overwrite: bool = option("Replace files that exist.", False),
) -> None:
    """Write the model of a run for ONNX or torch.export.

    Example: synthesizer export runs/first --output first.onnx --with-cache
    """
    import torch

    from synthetic_attention.export import export_model, largest_difference

    from ..training.run_folder import RunFolder

    set_up_libraries()
    folder = RunFolder.find(run)
    model: Any = folder.load(folder.read_task(folder.read_info()), torch.device("cpu"))[0]
    with user_errors():
        files = export_model(model, output, kind, with_cache=with_cache, overwrite=overwrite)
    for file in files:
        checked = kind == "onnx" and importlib.util.find_spec("onnxruntime")
        difference = f": at most {largest_difference(model, file):.1e} from PyTorch's output" if checked else ""
        echo(f"{file}{difference}")
