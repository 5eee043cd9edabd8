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
    run: str = argument("RUN", "Folder of a trained run or of a converted model, or the name of one on the hub."),
    output: Path = option("File to write.", ..., metavar="FILE"),
    kind: Literal["onnx", "torch"] = option("An ONNX file, or a program of torch.export.", "onnx", name="--format"),
    with_cache: bool = option("Decode step by step (ONNX only); an encoder-decoder gives two files.", False),
    overwrite: bool = option("Replace files that exist.", False),
) -> None:
    """Write a model for ONNX or torch.export.

    Example: synthesizer export runs/first --output first.onnx --with-cache
    """
    import torch

    from synthetic_attention.conversion.convert import load_model
    from synthetic_attention.export import export_model, largest_difference

    from ..training.run_folder import RunFolder

    set_up_libraries()
    folder = RunFolder.find(run)
    with user_errors():
        if folder.exists or not (folder.path / "config.json").exists():
            model: Any = folder.load(folder.read_task(folder.read_info()), torch.device("cpu"))[0]
        else:
            model = load_model(str(folder.path)).float().eval()
        files = export_model(model, output, kind, with_cache=with_cache, overwrite=overwrite)
    for file in files:
        checked = kind == "onnx" and importlib.util.find_spec("onnxruntime")
        difference = f": at most {largest_difference(model, file):.1e} from PyTorch's output" if checked else ""
        echo(f"{file}{difference}")
