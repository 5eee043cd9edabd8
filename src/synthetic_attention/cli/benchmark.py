"""synthesizer benchmark: speed and memory beside PyTorch's and Hugging Face's own."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    import torch

    from ..benchmark.layers import Case

__all__ = ["attention", "encoder", "generation", "memory"]

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
    profile: Annotated[
        bool, typer.Option("--profile", help="Show what PyTorch's operations take of a step, in place of timing it.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw time and memory without a mask against length to this PNG file.")
    ] = None,
) -> None:
    """Time whole attention layers, ours and their peers, in turns."""
    cases = _cases(lengths, tokens, masks, width, heads, dtype, device, json, plot)
    names = _names(variants)
    from ..benchmark.attention import profile_case, time_case
    from ..benchmark.memory import measure_case
    from ..benchmark.tables import draw_sweep, profile_table, records, timing_table

    console, found = _console(), []
    if profile:
        for mask in dict.fromkeys(case.mask for case in cases):
            own = [case for case in cases if case.mask == mask]
            shares = [share for case in own for share in profile_case(case, names, training=not forward)]
            for name in names:
                console.print(profile_table(shares, name))
        return
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
    from ..benchmark.memory import measure_case
    from ..benchmark.tables import memory_table, records

    console, found = _console(), []
    for mask in dict.fromkeys(case.mask for case in cases):
        of_mask = []
        for case in _watched([case for case in cases if case.mask == mask], f"memory, {mask}"):
            of_mask += measure_case(case, names, training=not forward, twins=twins)
        console.print(memory_table(of_mask))
        found += of_mask
    if json is not None:
        _write_json(json, device, records(found))


def encoder(
    variants: Annotated[
        str | None,
        typer.Option(help="Synthesizers, separated by commas, beside vanilla. [default: the paper's pure ones]"),
    ] = None,
    lengths: _Lengths = "1024",
    tokens: _Tokens = 4096,
    masks: _Masks = "full",
    layers: Annotated[int, typer.Option(min=1, help="Layers of the encoder.")] = 6,
    width: _Width = 512,
    heads: _Heads = 8,
    dtype: _Dtype = "float32",
    device: _Device = "cpu",
    repeats: Annotated[int, typer.Option(min=1, help="Turns that are timed.")] = 5,
    forward: _Forward = False,
    json: _Json = None,
) -> None:
    """Time whole encoders in turns, and measure their peak memory, beside a vanilla one and PyTorch's."""
    cases = _cases(lengths, tokens, masks, width, heads, dtype, device, json)
    if any(case.is_causal for case in cases):
        raise typer.BadParameter("got --masks causal; expected full or padded: an encoder sees the whole input")
    from ..benchmark.encoder import ENCODER_VARIANTS, measure_encoders
    from ..benchmark.tables import encoder_table, records

    names = list(ENCODER_VARIANTS) if variants is None else _names(variants, "encoders")
    console, found = _console(), []
    for case in _watched(cases, "encoders"):
        costs = measure_encoders(case, layers, names, training=not forward, repeats=repeats)
        console.print(encoder_table(costs))
        found += costs
    if json is not None:
        _write_json(json, device, records(found))


def generation(
    variants: _Variants = None,
    task: Annotated[str, typer.Option(help="language-modeling, beside GPT-2, or translation, beside Marian.")] = (
        "language-modeling"
    ),
    batch: Annotated[int, typer.Option(help="Sequences that are generated together.")] = 32,
    prompt: Annotated[int, typer.Option(help="Tokens of each prompt, or of each source.")] = 16,
    new_tokens: Annotated[int, typer.Option(help="Tokens that each sequence gets.")] = 256,
    beams: Annotated[int, typer.Option(help="Beams of the search; 1 is greedy.")] = 1,
    layers: Annotated[int, typer.Option(help="Layers, of the encoder too where there is one.")] = 6,
    width: Annotated[int, typer.Option(help="Width of the models; of the feed-forward layers four times that.")] = 512,
    heads: _Heads = 8,
    vocabulary: Annotated[int, typer.Option(help="Pieces in the vocabulary.")] = 8000,
    cache: Annotated[
        str, typer.Option(help="dynamic, or static: of fixed size, which on a GPU means compiled code.")
    ] = "dynamic",
    dtype: _Dtype = "float32",
    device: _Device = "cpu",
    repeats: Annotated[int, typer.Option(min=1, help="Turns that are timed.")] = 3,
    json: _Json = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Show what PyTorch's operations take of a step, in place of timing it.")
    ] = False,
) -> None:
    """Time generate() of whole models with random weights, ours and Hugging Face's, in turns."""
    _quiet_profiler()
    kind = _kind_of(dtype, device)
    _check_outputs([json])
    names = _names(variants, "decoders")
    from ..benchmark.generation import Setting, profile_steps, run
    from ..benchmark.generation_tables import generation_records, generation_table, step_table
    from .quiet import quiet_libraries

    quiet_libraries()
    sizes = {"layers": layers, "width": width, "heads": heads, "vocabulary": vocabulary}
    try:
        setting = Setting(
            task=task,
            batch=batch,
            prompt=prompt,
            new_tokens=new_tokens,
            beams=beams,
            cache=cache,
            dtype=kind,
            device=device,
            **sizes,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    console = _console()
    with console.status(f"{task}: {', '.join(names)}"):
        if profile:
            console.print(step_table(profile_steps(setting, names)))
            return
        results = run(setting, names, repeats)
    console.print(generation_table(results))
    if json is not None:
        _write_json(json, device, generation_records(results))


def _pass_name(forward: bool) -> str:
    return "forward, inference" if forward else "forward and backward"


def _cases(
    lengths: str, tokens: int, masks: str, width: int, heads: int, dtype: str, device: str, *outputs: Path | None
) -> list[Case]:
    """Every length under every mask, checked."""
    _quiet_profiler()
    from ..benchmark.layers import MASKS, Case

    _check_outputs(outputs)
    kind_of = _kind_of(dtype, device)
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
    return [Case(tokens // length, length, kind, width, heads, kind_of, device) for kind in kinds for length in numbers]


def _quiet_profiler() -> None:
    # The profiler, which is behind the figures of memory too, reports each start and stop unless this is set before
    # torch loads.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")


def _kind_of(dtype: str, device: str) -> torch.dtype:
    import torch

    dtypes = ("float32", "bfloat16", "float16")
    if dtype not in dtypes:
        raise typer.BadParameter(f"got --dtype {dtype}; expected one of: {', '.join(dtypes)}")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise typer.BadParameter("got --device cuda, but there is no CUDA device; expected cpu")
    kind: torch.dtype = getattr(torch, dtype)
    return kind


def _check_outputs(outputs: Sequence[Path | None]) -> None:
    """Minutes of measuring must not end at a folder that is not there."""
    for path in outputs:
        if path is not None and not path.absolute().parent.is_dir():
            raise typer.BadParameter(f"got file {path}, but its folder does not exist")


def _names(variants: str | None, of: Literal["layers", "encoders", "decoders"] = "layers") -> list[str]:
    from ..baselines import BASELINES
    from ..benchmark.attention import VARIANTS
    from ..self_attention import parse
    from ..synthesizers import parse as parse_layer

    names = list(VARIANTS) if variants is None else [name.strip() for name in variants.split(",")]
    for name in names:
        try:
            (parse_layer if of == "layers" else parse)(name)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        if of == "decoders" and name in BASELINES and not BASELINES[name].can_be_causal:
            raise typer.BadParameter(f"got {name!r}, which cannot generate; expected it in `benchmark encoder`")
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

    from ..benchmark.timing import about

    text = json.dumps({**about(device), "results": results}, indent=1) + "\n"
    _replace(path, lambda partial: partial.write_text(text, encoding="utf-8"))


def _draw(path: Path, figure: Any) -> None:
    from ..inspect.figures import save

    _replace(path, lambda partial: save(figure, partial))


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write beside `path` and rename: nothing half-written."""
    partial = path.with_name(f".{path.name}.partial")
    write(partial)
    partial.replace(path)
