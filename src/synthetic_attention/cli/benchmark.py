"""synthesizer benchmark: speed and memory beside PyTorch's and Hugging Face's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ..benchmarks.layers import Case

__all__ = ["attention", "memory"]

_LENGTHS = "64,128,256,512,1024,2048,4096"
_Variants = Annotated[
    str | None, typer.Option(help="Synthesizers, separated by commas. [default: the paper's and its mixtures]")
]
_Lengths = Annotated[str, typer.Option(help="Lengths, separated by commas.")]
_Tokens = Annotated[int, typer.Option(help="Tokens in a batch: its size is tokens / length.")]
_Masks = Annotated[str, typer.Option(help="Of full, causal and padded, separated by commas.")]
_Width = Annotated[int, typer.Option(help="Width of the layer.")]
_Heads = Annotated[int, typer.Option(help="Heads.")]
_Dtype = Annotated[str, typer.Option(help="float32, bfloat16 or float16, of input and parameters.")]
_Device = Annotated[str, typer.Option(help="cpu or cuda.")]
_Forward = Annotated[bool, typer.Option("--forward", help="The forward alone, in inference mode.")]
_Twins = Annotated[bool, typer.Option("--twins", help="The slow twins too: the equations through whole matrices.")]
_Json = Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")]


def attention(
    variants: _Variants = None,
    lengths: _Lengths = _LENGTHS,
    tokens: _Tokens = 4096,
    masks: _Masks = "full,causal,padded",
    width: _Width = 512,
    heads: _Heads = 8,
    dtype: _Dtype = "float32",
    device: _Device = "cpu",
    repeats: Annotated[int, typer.Option(min=1, help="Turns that are timed.")] = 9,
    forward: _Forward = False,
    twins: _Twins = False,
    json: _Json = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw time and memory without a mask against length to this PNG file.")
    ] = None,
) -> None:
    """Time whole attention layers, ours and their peers, in turns."""
    cases = _cases(lengths, tokens, masks, width, heads, dtype, device, json, plot)
    names = _names(variants)
    from ..benchmarks.attention import time_case
    from ..benchmarks.memory import measure_case
    from ..report.benchmarks import draw_sweep, records, timing_table

    console, found = _console(), []
    for mask in dict.fromkeys(case.mask for case in cases):
        of_mask = []
        for case in _watched([case for case in cases if case.mask == mask], f"timing, {mask}"):
            of_mask += time_case(case, names, training=not forward, repeats=repeats, twins=twins)
        console.print(timing_table(of_mask))
        found += of_mask
    if json is not None:
        _write_json(json, device, records(found))
    if plot is not None:
        plain = [case for case in cases if case.mask == "full"] or cases
        peaks = [m for case in _watched(plain, "memory") for m in measure_case(case, names, training=not forward)]
        of_plain = [timing for timing in found if timing.case in plain]
        title = f"An attention layer of width {width}, {tokens:,} tokens, {dtype}: {_pass_name(forward)}"
        _draw(plot, draw_sweep(of_plain, peaks, title))


def memory(
    variants: _Variants = None,
    lengths: _Lengths = "512",
    tokens: _Tokens = 16384,
    masks: _Masks = "full",
    width: _Width = 512,
    heads: _Heads = 8,
    dtype: _Dtype = "float32",
    device: _Device = "cpu",
    forward: _Forward = False,
    twins: _Twins = False,
    json: _Json = None,
) -> None:
    """Measure the peak memory of whole attention layers, beyond their parameters and gradients."""
    cases = _cases(lengths, tokens, masks, width, heads, dtype, device, json)
    names = _names(variants)
    from ..benchmarks.memory import measure_case
    from ..report.benchmarks import memory_table, records

    console, found = _console(), []
    for mask in dict.fromkeys(case.mask for case in cases):
        of_mask = []
        for case in _watched([case for case in cases if case.mask == mask], f"memory, {mask}"):
            of_mask += measure_case(case, names, training=not forward, twins=twins)
        console.print(memory_table(of_mask))
        found += of_mask
    if json is not None:
        _write_json(json, device, records(found))


def _pass_name(forward: bool) -> str:
    return "forward, inference" if forward else "forward and backward"


def _cases(
    lengths: str, tokens: int, masks: str, width: int, heads: int, dtype: str, device: str, *outputs: Path | None
) -> list[Case]:
    """Every length under every mask, checked."""
    import torch

    from ..benchmarks.layers import MASKS, Case

    dtypes = ("float32", "bfloat16", "float16")
    _check_outputs(outputs)
    if dtype not in dtypes:
        raise typer.BadParameter(f"got --dtype {dtype}; expected one of: {', '.join(dtypes)}")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise typer.BadParameter("got --device cuda, but there is no CUDA device; expected cpu")
    if width < 1 or heads < 1 or width % heads:
        raise typer.BadParameter(f"got --width {width} and --heads {heads}; expected heads that divide the width")
    kinds = [kind.strip() for kind in masks.split(",")]
    for kind in kinds:
        if kind not in MASKS:
            raise typer.BadParameter(f"got mask {kind!r}; expected some of: {', '.join(MASKS)}")
    try:
        numbers = [int(length) for length in lengths.split(",")]
    except ValueError:
        raise typer.BadParameter(f"got --lengths {lengths!r}; expected numbers like 64,128") from None
    if any(not 2 <= length <= tokens for length in numbers):
        raise typer.BadParameter(f"got --lengths {lengths} with --tokens {tokens}; expected lengths of 2 … tokens")
    kind_of = getattr(torch, dtype)
    return [
        Case(tokens // length, length, kind, width, heads, kind_of, device) for kind in kinds for length in numbers
    ]


def _check_outputs(outputs: Sequence[Path | None]) -> None:
    """Minutes of measuring must not end at a folder that is not there."""
    for path in outputs:
        if path is not None and not path.absolute().parent.is_dir():
            raise typer.BadParameter(f"got file {path}, but its folder does not exist")


def _names(variants: str | None) -> list[str]:
    from ..benchmarks.attention import VARIANTS
    from ..functions import parse

    names = list(VARIANTS) if variants is None else [name.strip() for name in variants.split(",")]
    for name in names:
        try:
            parse(name)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    return names


def _console() -> Any:
    from rich.console import Console

    return Console()


def _watched(cases: list[Case], what: str) -> Any:
    """The cases, with a bar that shows how far they are where somebody watches."""
    from rich.console import Console
    from rich.progress import track

    labels = f"{what}, {', '.join(str(case.length) for case in cases)}"
    return track(cases, labels, console=Console(stderr=True), transient=True)


def _write_json(path: Path, device: str, results: list[dict[str, Any]]) -> None:
    import json

    from ..benchmarks.timing import about

    text = json.dumps({**about(device), "results": results}, indent=1) + "\n"
    _replace(path, lambda partial: partial.write_text(text, encoding="utf-8"))


def _draw(path: Path, figure: Any) -> None:
    from ..report.figures import save

    _replace(path, lambda partial: save(figure, partial))


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write beside `path` and rename: nothing half-written."""
    partial = path.with_name(f".{path.name}.partial")
    write(partial)
    partial.replace(path)
