"""synthesizer benchmark: speed and memory compared with PyTorch and Hugging Face."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from ..errors import UserError
from . import options as opt
from .console import set_up_libraries

if TYPE_CHECKING:
    from ..benchmark.harness import Measurement

_Variants = Annotated[str | None, Option(metavar="NAME,NAME,…", help="Synthesizers. [default: all of the paper]")]
_Peers = Annotated[
    str | None,
    Option(
        metavar="NAME,NAME,…",
        help="Other layers, the baseline first: mha, sdpa, t5. [default: all]",
    ),
]
_Lengths = Annotated[str, Option(metavar="N,N,…", help="Lengths of the sequences.")]
_Tokens = Annotated[int, opt.number("Tokens in a batch: the batch size is tokens / length.", 1)]
_Masks = Annotated[str, Option(metavar="MASK,MASK,…", help="Masks: full, causal, padded.")]
_Width = Annotated[int, opt.number("Width of the layers; feed-forward layers are 4 times as wide.", 1, 10**5)]
_Heads = Annotated[int, opt.number("Number of heads.", 1, 10**5)]
_Layers = Annotated[int, opt.number("Number of layers, in encoder and decoder each.", 1, 1000)]
_Dtype = Annotated[Literal["float32", "bfloat16", "float16"], Option(help="Data type of inputs and parameters.")]
_Forward = Annotated[bool, Option("--forward", help="Measure only the forward, in inference mode.")]
_Repeats = Annotated[int, opt.number("Number of timed turns.", 1)]
_Json = Annotated[Path | None, Option("--json", help="Write the figures to this file.")]


def attention(
    variants: _Variants = None,
    peers: _Peers = None,
    lengths: _Lengths = "64,128,256,512,1024,2048,4096",
    tokens: _Tokens = 4096,
    masks: _Masks = "full,causal,padded",
    width: _Width = 512,
    heads: _Heads = 8,
    dtype: _Dtype = "float32",
    device: opt.Device = None,
    threads: opt.Threads = None,
    repeats: _Repeats = 9,
    forward: _Forward = False,
    json: _Json = None,
) -> None:
    """Time attention layers, ours and others', in turns."""
    _measure(locals(), peers=_peers(peers), repeats=repeats)


def memory(
    variants: _Variants = None,
    peers: _Peers = None,
    lengths: _Lengths = "512",
    tokens: _Tokens = 16384,
    masks: _Masks = "full",
    width: _Width = 512,
    heads: _Heads = 8,
    dtype: _Dtype = "float32",
    device: opt.Device = None,
    threads: opt.Threads = None,
    forward: _Forward = False,
    json: _Json = None,
) -> None:
    """Measure the peak memory of attention layers, ours and others'."""
    _measure(locals(), peers=_peers(peers), memory=True)


def encoder(
    variants: _Variants = None,
    lengths: _Lengths = "1024",
    tokens: _Tokens = 4096,
    masks: _Masks = "full",
    layers: _Layers = 6,
    width: _Width = 512,
    heads: _Heads = 8,
    dtype: _Dtype = "float32",
    device: opt.Device = None,
    threads: opt.Threads = None,
    repeats: _Repeats = 5,
    forward: _Forward = False,
    json: _Json = None,
) -> None:
    """Measure time and memory of encoders, ours and PyTorch's."""
    if "causal" in masks:
        raise UserError("got --masks causal; expected full or padded, because an encoder sees the whole input")
    _measure(locals(), layers=layers, repeats=repeats)


def generation(
    variants: _Variants = None,
    task: Annotated[Literal["language-modeling", "translation"], Option(help="What to do.")] = "language-modeling",
    batch: Annotated[str, Option(metavar="N,N,…", help="Numbers of sequences generated together.")] = "32",
    prompt: Annotated[
        str, Option(metavar="N,N-N,…", help="Tokens of each prompt or source; 12-36: spread evenly, and padded.")
    ] = "16",
    new_tokens: Annotated[int, opt.number("Tokens to generate for each sequence.", 1)] = 256,
    num_beams: Annotated[str, Option(metavar="N,N,…", help="Numbers of beams; 1 is greedy search.")] = "1",
    layers: _Layers = 6,
    width: _Width = 512,
    heads: _Heads = 8,
    vocabulary: Annotated[int, opt.number("Size of the vocabulary.", 4)] = 8000,
    cache: Annotated[Literal["dynamic", "static"], Option(help="Static is compiled on a GPU.")] = "dynamic",
    dtype: _Dtype = "float32",
    transformers: Annotated[
        bool, Option("--transformers", help="Measure our models with transformers' decode loop too.")
    ] = False,
    int8: Annotated[bool, Option("--int8", help="Measure our models with int8 linear layers too (CPU only).")] = False,
    device: opt.Device = None,
    threads: opt.Threads = None,
    repeats: _Repeats = 3,
    json: _Json = None,
) -> None:
    """Time generate() of models with random weights."""
    flags = locals()
    set_up_libraries(flags["threads"])
    from ..benchmark.generation import GenerationCase, measure_generation
    from ..benchmark.layers import VARIANTS

    names = ("task", "new_tokens", "layers", "width", "heads", "vocabulary", "cache")
    sizes = {name: flags[name] for name in names} | _where(flags)
    counts, searches = _numbers("--batch", batch), _numbers("--num-beams", num_beams)
    cases = [
        GenerationCase(batch=count, prompt=_range(lengths), num_beams=beams, **sizes)
        for lengths, beams, count in product(prompt.split(","), searches, counts)
    ]
    modes = {"transformers": transformers, "int8": int8}
    found = _try(measure_generation, cases, _names(variants, VARIANTS), repeats, **modes)
    _write(json, found)
    _print(found)


def _measure(flags: Mapping[str, Any], **options: Any) -> None:
    """Measure every length with every mask, print the tables of each mask, and write all figures so far.

    Args:
        options: of `measure_layers`, or with `layers` of `measure_encoders`.
    """
    set_up_libraries(flags["threads"])
    from ..benchmark.layers import ENCODER_VARIANTS, VARIANTS, measure_encoders, measure_layers
    from ..benchmark.peers import Case

    measure, known = (measure_encoders, ENCODER_VARIANTS) if "layers" in options else (measure_layers, VARIANTS)
    lengths = _numbers("--lengths", flags["lengths"])
    names, where = _names(flags["variants"], known), _where(flags)
    found: list[Measurement] = []
    sizes = [(flags["tokens"] // max(length, 1), length) for length in lengths]
    masks = _names(flags["masks"], [])
    for cases in [[Case(*size, mask, flags["width"], flags["heads"], **where) for size in sizes] for mask in masks]:
        measured = []
        for case in cases:
            measured += _try(measure, case, variants=names, training=not flags["forward"], **options)
            _write(flags["json"], [*found, *measured])
        found += measured
        _print(measured)


def _try(measure: Callable[..., list[Measurement]], *args: Any, **options: Any) -> list[Measurement]:
    from ..training.failures import shortage_reported

    sizes = "use smaller sizes (tokens, batch, width, layers)"
    try:
        with shortage_reported(sizes, lambda: "nothing was written for them", "use --cache dynamic"):
            return measure(*args, **options)
    except ValueError as error:
        # A layer or model with these options cannot be built.
        raise UserError(" ".join(str(error).split())) from error


def _where(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The device and dtype, after a check of the output file."""
    import torch

    from ..training.device import choose_device

    path = flags["json"]
    if path is not None and (path.resolve().is_dir() or not path.resolve().parent.is_dir()):
        raise UserError(f"got --json {path}; expected a file in a folder that exists")
    device = choose_device(flags["device"])
    if device.index is not None:
        torch.accelerator.set_device_index(device.index)
    return {"device": str(device), "dtype": getattr(torch, flags["dtype"])}


def _numbers(option: str, text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise UserError(f"got {option} {text!r}; expected numbers like 64,128") from None


def _range(text: str) -> tuple[int, int]:
    """N or N-N."""
    first, _, last = text.partition("-")
    try:
        return int(first), int(last or first)
    except ValueError:
        raise UserError(f"got --prompt {text!r}; expected numbers like 24 or 12-36") from None


def _peers(names: str | None) -> Sequence[str] | None:
    return None if names is None else _names(names, [])


def _names(variants: str | None, default: Sequence[str]) -> Sequence[str]:
    return default if variants is None else [name.strip() for name in variants.split(",")]


def _print(found: list[Measurement]) -> None:
    from rich.console import Console

    from ..benchmark.tables import tables

    for table in tables(found):
        Console().print(table)


def _write(path: Path | None, found: list[Measurement]) -> None:
    """Write the figures to a file."""
    import json

    from ..benchmark.harness import about
    from ..benchmark.tables import records

    if path is not None:
        text = json.dumps({**about(found[0].case.device), "results": records(found)}, indent=1)
        path.write_text(f"{text}\n", encoding="utf-8")
