"""synthesizer export RUN."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Option, echo

from ..errors import user_errors
from . import options as opt
from .console import set_up_libraries

__all__ = ["export"]


def export(
    run: opt.Run,
    output: Annotated[Path, Option(metavar="FILE", help="File to write.")],
    format: Annotated[  # noqa: A002
        Literal["onnx", "torch"], Option(help="An ONNX file, or a program of torch.export.")
    ] = "onnx",
    with_cache: Annotated[
        bool, Option("--with-cache", help="Decode step by step (ONNX only); an encoder-decoder gives two files.")
    ] = False,
    int8: opt.Int8 = False,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace files that exist.")] = False,
) -> None:
    """Write the model of a run for ONNX or torch.export."""
    import torch

    from synthetic_attention.export import export_model, largest_difference
    from synthetic_attention.kernels import quantize_int8

    from ..training.run_folder import RunFolder

    set_up_libraries()
    folder = RunFolder(run)
    model: Any = folder.load(folder.read_task(folder.read_info()), torch.device("cpu"))[0]
    model = quantize_int8(model) if int8 else model
    with user_errors():
        files = export_model(model, output, format, with_cache=with_cache, overwrite=overwrite)
    for file in files:
        checked = format == "onnx" and importlib.util.find_spec("onnxruntime")
        difference = f": at most {largest_difference(model, file):.1e} from PyTorch's output" if checked else ""
        echo(f"{file}{difference}")
