"""Attention layers and encoders: ours, and those of PyTorch and Hugging Face."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch
from torch import nn
from torch.nn.attention import SDPBackend

from synthetic_attention.attention import SynthesizerAttention
from synthetic_attention.layout import TokenLayout
from synthetic_attention.models import SynthesizerConfig
from synthetic_attention.models.modeling import SynthesizerStack

from ..errors import UserError
from ..training.failures import is_out_of_memory
from .accuracy import Accuracy, check, reduced
from .cases import Case
from .flops import count_flops, matrix_rate
from .harness import Contender, Measurement, measure_memory, time_turns
from .peers import ALIKE, PEERS, build_peer, fastest_backend, peers_of

ENCODER_VARIANTS = ("random", "fixed_random", "factorized_random", "dense", "factorized_dense")
VARIANTS = (*ENCODER_VARIANTS, "random+vanilla", "dense+vanilla", "vanilla")
_TORCH_ENCODER = "nn.TransformerEncoder"
_T = TypeVar("_T")


def measure_layers(
    case: Case,
    variants: Sequence[str],
    *,
    peers: Sequence[str] | None = None,
    training: bool = True,
    repeats: int = 0,
    memory: bool = False,
) -> list[Measurement]:
    """Measure the peers and our variants in `repeats` turns, after comparing each variant with float64.

    Args:
        peers: some of `peers_of`, the baseline first; None for all.

    Raises:
        UserError: an unknown peer.
    """
    known = peers_of(case)
    peers = known if peers is None else peers
    if unknown := [name for name in peers if name not in known]:
        raise UserError(
            f"got --peers {unknown[0]}; expected some of: {', '.join(known)} (device {case.device}, mask {case.mask}, "
            f"{case.dtype})"
        )
    torch.manual_seed(0)
    small = reduced(case)
    checks = {name: _attempt(partial(_check, small, name)) for name in variants}
    backend = fastest_backend(case, training) if "sdpa" in peers else None
    build = partial(build_layer, case, backend=backend)
    names = [*peers, *(name for name, accuracy in checks.items() if accuracy is not None and accuracy.is_accepted)]
    found = {each.name: each for each in _measure(case, names, build, training, repeats, memory)}
    for name, accuracy in checks.items():
        problem = "out of memory" if accuracy is None else "inexact"
        each = found.get(name, Measurement(name, case, training, problem=problem))
        error = None if accuracy is None else accuracy.error
        found[name] = replace(each, difference=error, checked=(small.batch, small.length))
    if "sdpa" in found and backend is not None:
        found["sdpa"] = replace(found["sdpa"], backend=backend.name.removesuffix("_ATTENTION").lower())
    return [_with_rate(found[name]) for name in (*peers, *variants)]


def measure_encoders(
    case: Case, layers: int, variants: Sequence[str], *, training: bool = True, repeats: int = 5
) -> list[Measurement]:
    """Measure time and memory of a vanilla encoder, PyTorch's, and those of `variants`."""
    torch.manual_seed(0)
    names = ["vanilla", _TORCH_ENCODER, *(name for name in variants if name != "vanilla")]

    def build(name: str) -> Contender:
        with torch.device(case.device):
            encoder = _build_encoder(case, layers, name)
        encoder.module.to(case.dtype)
        return encoder

    return _measure(case, names, build, training, repeats, memory=True)


def _measure(
    case: Case, names: Sequence[str], build: Callable[[str], Contender], training: bool, repeats: int, memory: bool
) -> list[Measurement]:
    """Time all in turns, and count the bytes of each. The first is the baseline."""
    inputs, found = case.inputs(), []
    # All are built before the first one runs: where memory suffices now, it does later.
    layers = {name: layer for name in names if (layer := _attempt(partial(build, name))) is not None}
    for name in [*layers]:
        if _attempt(partial(layers[name].step, inputs, training)) is None:
            del layers[name]
    turns = {name: partial(layer.step, inputs, training) for name, layer in layers.items()}
    times = time_turns(turns, next(iter(turns), ""), repeats, device=case.device)
    for name in names:
        if name not in layers:
            found.append(Measurement(name, case, training, problem="out of memory"))
            continue
        time, ratio = times.get(name, (None, None))
        peak, kept = measure_memory(layers[name], inputs, training) if memory else (None, None)
        size = sum(p.numel() for p in layers[name].module.parameters())
        # Without the baseline there is nothing to compare with.
        ratio = ratio if names[0] in layers else None
        found.append(Measurement(name, case, training, time, ratio, peak=peak, kept=kept, parameters=size))
    return found


def _attempt(action: Callable[[], _T]) -> _T | None:
    """The result of an action; None where memory runs out."""
    try:
        return action()
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
    return None


def _with_rate(found: Measurement) -> Measurement:
    """The figures with those of matrix products, on an accelerator."""
    case, name = found.case, found.name
    if found.milliseconds is None or case.device == "cpu":
        return found
    flops = count_flops(partial(build_layer, name="sdpa" if name in ALIKE else name), case, found.training)
    rate = flops / (1e-3 * found.milliseconds[1])
    return replace(found, tflops=rate / 1e12, share=rate / matrix_rate(case.dtype, case.device))


def _check(case: Case, name: str) -> Accuracy:
    return check(build_layer(case, name), case)


def build_layer(case: Case, name: str, backend: SDPBackend | None = None) -> Contender:
    """One of `PEERS`, or our layer with this function or mixture.

    Args:
        backend: of `sdpa`.
    """
    if name in PEERS:
        with torch.device(case.device):
            peer = build_peer(case, name, backend)
        peer.module.to(case.dtype)
        return peer
    layer = SynthesizerAttention(case.width, case.heads, name, case.length, device=case.device, dtype=case.dtype)
    return Contender(name, layer, partial(layer, is_causal=case.is_causal))


def _build_encoder(case: Case, layers: int, name: str) -> Contender:
    """Ours, or PyTorch's; all pre-norm, with feed-forward layers 4 times as wide."""
    if name == _TORCH_ENCODER:
        layer = nn.TransformerEncoderLayer(
            case.width, case.heads, 4 * case.width, dropout=0.0, batch_first=True, norm_first=True
        )
        # PyTorch supports nested tensors only without norm_first.
        peer = nn.TransformerEncoder(layer, layers, nn.LayerNorm(case.width), enable_nested_tensor=False)
        return Contender(name, peer, lambda x, mask: peer(x, src_key_padding_mask=None if mask is None else ~mask))
    config = SynthesizerConfig(
        vocab_size=3,
        d_model=case.width,
        num_heads=case.heads,
        d_ff=4 * case.width,
        num_layers=layers,
        synthesizer=name,
        max_position_embeddings=case.length,
        dropout_rate=0.0,
    )
    encoder = SynthesizerStack(config, "encoder")
    return Contender(name, encoder, lambda x, mask: encoder(x, TokenLayout.of(mask, x))[0])
