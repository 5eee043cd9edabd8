"""synthesizer benchmark: speed and memory compared with PyTorch and Hugging Face."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal

from ..errors import UserError, user_errors
from .console import set_up_libraries
from .options import Device, option, whole_numbers, with_default


@dataclass(kw_only=True)
class Models:
    """Models."""

    variants: str | None = option("Synthesizers. [default: all of the paper]", metavar="NAME,NAME,…")
    width: int = option("Width of the layers; feed-forward layers are 4 times as wide.", 512, least=1, most=10**5)
    heads: int = option("Number of heads.", 8, least=1, most=10**5)
    dtype: Literal["float32", "bfloat16", "float16"] = option("Data type of inputs and parameters.", "float32")
    place: Device
    json: Path | None = option("Write the figures to this file.")

    def prepare(self) -> dict[str, Any]:
        """Check the output file and set the libraries up; returns the sizes that all cases share."""
        set_up_libraries(self.place.threads)
        import torch

        from ..training.device import choose_device

        path = self.json
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise UserError(f"got --json {path}; expected a file in a folder that exists")
        device = choose_device(self.place.device)
        if device.index is not None:
            torch.accelerator.set_device_index(device.index)
        shared = {"width": self.width, "heads": self.heads, "dtype": getattr(torch, self.dtype)}
        return {**shared, "device": str(device)}


@dataclass(kw_only=True)
class Attention(Models):
    """Layers."""

    lengths: str = option("Lengths of the sequences.", "64,128,256,512,1024,2048,4096", metavar="N,N,…")
    tokens: int = option("Tokens in a batch: the batch size is tokens / length.", 4096, least=1)
    masks: str = option("Masks: full, causal, padded.", "full,causal,padded", metavar="MASK,MASK,…")
    forward: bool = option("Measure only the forward, in inference mode.", False)
    repeats: int = option("Number of timed turns.", 9, least=1)


@dataclass(kw_only=True)
class Encoder(Attention):
    """Encoders."""

    lengths: str = with_default(Attention, "lengths", "1024")
    masks: str = with_default(Attention, "masks", "full")
    layers: int = option("Number of layers, in encoder and decoder each.", 6, least=1, most=1000)
    repeats: int = with_default(Attention, "repeats", 5)


@dataclass(kw_only=True)
class Generation(Models):
    """Models that generate."""

    task: Literal["language-modeling", "translation"] = option("What to do.", "language-modeling")
    batch: str = option("Numbers of sequences generated together.", "32", metavar="N,N,…")
    prompt: str = option("Tokens of each prompt or source.", "16", metavar="N,N,…")
    new_tokens: int = option("Tokens to generate for each sequence.", 256, least=1)
    num_beams: str = option("Numbers of beams; 1 is greedy search.", "1", metavar="N,N,…")
    layers: int = with_default(Encoder, "layers", 6)
    vocabulary: int = option("Size of the vocabulary.", 8000, least=4)
    repeats: int = with_default(Encoder, "repeats", 3)


def attention(options: Attention) -> None:
    """Measure attention layers, ours and PyTorch's.

    Example: synthesizer benchmark attention --variants random,dense --lengths 256,512 --masks causal
    """
    _measure_layers(options)


def encoder(options: Encoder) -> None:
    """Measure time and memory of encoders, ours and PyTorch's.

    Example: synthesizer benchmark encoder --variants random,vanilla --lengths 512 --layers 6
    """
    if "causal" in options.masks:
        raise UserError("got --masks causal; expected full or padded, because an encoder sees the whole input")
    _measure_layers(options, options.layers)


def generation(options: Generation) -> None:
    """Time generate() of models with random weights.

    Example: synthesizer benchmark generation --task translation --variants random,vanilla --batch 1,32
    """
    shared = options.prepare()
    from ..benchmark.generation import GenerationCase, measure_generation
    from ..benchmark.layers import VARIANTS

    shared |= {name: getattr(options, name) for name in ("task", "new_tokens", "layers", "vocabulary")}
    counts, searches = whole_numbers("--batch", options.batch), whole_numbers("--num-beams", options.num_beams)
    variants = _split(options.variants) if options.variants else VARIANTS
    groups = []
    for prompt in whole_numbers("--prompt", options.prompt):
        shapes = product(searches, counts)
        cases = [GenerationCase(prompt=prompt, num_beams=beams, batch=count, **shared) for beams, count in shapes]
        groups.append([partial(measure_generation, cases, variants, options.repeats)])
    _report(options, groups)


def _measure_layers(options: Attention, layers: int = 0) -> None:
    """Measure every length with every mask."""
    shared = options.prepare()
    from ..benchmark.layers import ENCODER_VARIANTS, VARIANTS, Case, measure

    variants = _split(options.variants) if options.variants else ENCODER_VARIANTS if layers else VARIANTS
    lengths = whole_numbers("--lengths", options.lengths)
    groups = []
    for mask in _split(options.masks):
        cases = [Case(options.tokens // length, length, mask, layers=layers, **shared) for length in lengths]
        groups.append([partial(measure, case, variants, options.repeats, not options.forward) for case in cases])
    _report(options, groups)


def _report(options: Models, groups: Sequence[Sequence[Callable[[], list[dict[str, Any]]]]]) -> None:
    """Call all functions, print the tables of each group, and write all figures so far."""
    from rich.console import Console

    from ..benchmark.harness import about, tables
    from ..training.device import shortage_reported

    sizes, found = "use smaller sizes (tokens, batch, width, layers)", list[dict[str, Any]]()
    for calls in groups:
        start = len(found)
        for call in calls:
            # A layer or model with these options may not exist.
            with user_errors(), shortage_reported(sizes, lambda: "nothing was written for them"):
                found += call()
            if options.json is not None:
                content = {**about(found[0]["device"]), "results": found}
                options.json.write_text(f"{json.dumps(content, indent=1)}\n", encoding="utf-8")
        for table in tables(found[start:]):
            Console().print(table)


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",")]
