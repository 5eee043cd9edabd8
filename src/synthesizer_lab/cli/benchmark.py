"""synthesizer benchmark: speed and memory compared with PyTorch and Hugging Face."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..errors import UserError, user_errors
from .console import set_up_libraries
from .options import Device, option, with_default

if TYPE_CHECKING:
    from ..benchmark.harness import Measurement


@dataclass(kw_only=True)
class Models:
    """Models."""

    variants: str | None = option("Synthesizers. [default: all of the paper]", metavar="NAME,NAME,…")
    width: int = option("Width of the layers; feed-forward layers are 4 times as wide.", 512, least=1, most=10**5)
    heads: int = option("Number of heads.", 8, least=1, most=10**5)
    dtype: Literal["float32", "bfloat16", "float16"] = option("Data type of inputs and parameters.", "float32")
    place: Device
    json: Path | None = option("Write the figures to this file.")

    def where(self) -> dict[str, Any]:
        """The device and dtype, after a check of the output file."""
        import torch

        from ..training.device import choose_device

        path = self.json
        if path is not None and (path.resolve().is_dir() or not path.resolve().parent.is_dir()):
            raise UserError(f"got --json {path}; expected a file in a folder that exists")
        device = choose_device(self.place.device)
        if device.index is not None:
            torch.accelerator.set_device_index(device.index)
        return {"device": str(device), "dtype": getattr(torch, self.dtype)}


@dataclass(kw_only=True)
class Memory(Models):
    """Layers."""

    lengths: str = option("Lengths of the sequences.", "512", metavar="N,N,…")
    tokens: int = option("Tokens in a batch: the batch size is tokens / length.", 16384, least=1)
    masks: str = option("Masks: full, causal, padded.", "full", metavar="MASK,MASK,…")
    forward: bool = option("Measure only the forward, in inference mode.", False)


@dataclass(kw_only=True)
class Encoder(Memory):
    """Encoders."""

    lengths: str = with_default(Memory, "lengths", "1024")
    tokens: int = with_default(Memory, "tokens", 4096)
    layers: int = option("Number of layers, in encoder and decoder each.", 6, least=1, most=1000)
    repeats: int = option("Number of timed turns.", 5, least=1)


@dataclass(kw_only=True)
class Attention(Memory):
    """Layers."""

    lengths: str = with_default(Memory, "lengths", "64,128,256,512,1024,2048,4096")
    tokens: int = with_default(Memory, "tokens", 4096)
    masks: str = with_default(Memory, "masks", "full,causal,padded")
    repeats: int = with_default(Encoder, "repeats", 9)


@dataclass(kw_only=True)
class Generation(Models):
    """Models that generate."""

    task: Literal["language-modeling", "translation"] = option("What to do.", "language-modeling")
    batch: str = option("Numbers of sequences generated together.", "32", metavar="N,N,…")
    prompt: str = option("Tokens of each prompt or source; 12-36: spread evenly, and padded.", "16", metavar="N,N-N,…")
    new_tokens: int = option("Tokens to generate for each sequence.", 256, least=1)
    num_beams: str = option("Numbers of beams; 1 is greedy search.", "1", metavar="N,N,…")
    layers: int = with_default(Encoder, "layers", 6)
    vocabulary: int = option("Size of the vocabulary.", 8000, least=4)
    repeats: int = with_default(Encoder, "repeats", 3)


def attention(options: Attention) -> None:
    """Time attention layers, ours and others', in turns.

    Example: synthesizer benchmark attention --variants random,dense --lengths 256,512 --masks causal
    """
    _measure(options, repeats=options.repeats)


def memory(options: Memory) -> None:
    """Measure the peak memory of attention layers, ours and others'.

    Example: synthesizer benchmark memory --variants random,vanilla --lengths 512,2048
    """
    _measure(options, memory=True)


def encoder(options: Encoder) -> None:
    """Measure time and memory of encoders, ours and PyTorch's.

    Example: synthesizer benchmark encoder --variants random,vanilla --lengths 512 --layers 6
    """
    if "causal" in options.masks:
        raise UserError("got --masks causal; expected full or padded, because an encoder sees the whole input")
    _measure(options, layers=options.layers, repeats=options.repeats)


def generation(options: Generation) -> None:
    """Time generate() of models with random weights.

    Example: synthesizer benchmark generation --task translation --variants random,vanilla --batch 1,32
    """
    set_up_libraries(options.place.threads)
    from ..benchmark.generation import GenerationCase, measure_generation
    from ..benchmark.layers import VARIANTS

    names = ("task", "new_tokens", "layers", "width", "heads", "vocabulary")
    sizes = {name: getattr(options, name) for name in names} | options.where()
    counts, searches = _numbers("--batch", options.batch), _numbers("--num-beams", options.num_beams)
    cases = [
        GenerationCase(batch=count, prompt=_range(lengths), num_beams=beams, **sizes)
        for lengths, beams, count in product(options.prompt.split(","), searches, counts)
    ]
    found = _try(measure_generation, cases, _split(options.variants) or VARIANTS, options.repeats)
    _write(options.json, found)
    _print(found)


def _measure(options: Memory, **how: Any) -> None:
    """Measure every length with every mask, print the tables of each mask, and write all figures so far.

    Args:
        how: arguments of `measure_layers`, or with `layers` of `measure_encoders`.
    """
    set_up_libraries(options.place.threads)
    from ..benchmark.layers import ENCODER_VARIANTS, VARIANTS, measure_encoders, measure_layers
    from ..benchmark.peers import Case

    measure, known = (measure_encoders, ENCODER_VARIANTS) if "layers" in how else (measure_layers, VARIANTS)
    lengths, where = _numbers("--lengths", options.lengths), options.where()
    names, found = _split(options.variants) or known, list["Measurement"]()
    for mask in _split(options.masks) or []:
        measured = []
        for length in lengths:
            case = Case(options.tokens // max(length, 1), length, mask, options.width, options.heads, **where)
            measured += _try(measure, case, variants=names, training=not options.forward, **how)
            _write(options.json, [*found, *measured])
        found += measured
        _print(measured)


def _try(measure: Callable[..., list[Measurement]], *args: Any, **options: Any) -> list[Measurement]:
    from ..training.device import shortage_reported

    sizes = "use smaller sizes (tokens, batch, width, layers)"
    # A layer or model with these options may not exist.
    with user_errors(), shortage_reported(sizes, lambda: "nothing was written for them"):
        return measure(*args, **options)


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


def _split(names: str | None) -> list[str] | None:
    return None if names is None else [name.strip() for name in names.split(",")]


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
