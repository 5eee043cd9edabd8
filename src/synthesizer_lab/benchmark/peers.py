"""Attention layers of PyTorch, Hugging Face and flash-attn."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from transformers import T5Config
from transformers.models.t5.modeling_t5 import T5Attention

from .cases import Case
from .harness import Contender, time_turns

PEERS = ("mha", "sdpa", "flex", "flash_attn", "t5")
# Those with the matrix products of `sdpa`.
ALIKE = ("flex", "flash_attn")
# Queries, keys and values (B, H, L, K), and a mask (B, L) of real tokens.
_Kernel = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
_BACKENDS = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)


def peers_of(case: Case) -> tuple[str, ...]:
    """The layers that can be measured in this case, the baseline first."""
    if case.device == "cpu":
        return "mha", "sdpa", "t5"
    names = ["sdpa", "mha"]
    if case.device.startswith("cuda"):
        names.append("flex")
        if find_spec("flash_attn") and case.mask != "padded" and case.dtype != torch.float32:
            names.append("flash_attn")
    return *names, "t5"


def build_peer(case: Case, name: str, backend: SDPBackend | None = None) -> Contender:
    """A layer by its name in `peers_of`.

    Args:
        backend: of `sdpa`; None leaves the choice to PyTorch.
    """
    if name == "mha":
        return _multihead(case)
    if name == "t5":
        return _t5(case)
    kernels = {"sdpa": partial(_sdpa, case, backend), "flex": partial(_flex, case), "flash_attn": partial(_flash, case)}
    layer = _Attention(case)
    return Contender(name, layer, partial(layer, kernel=kernels[name]()))


def fastest_backend(case: Case, training: bool) -> SDPBackend | None:
    """The backend with which `sdpa` is fastest; None on a CPU, and where only the unfused one supports the case."""
    if case.device == "cpu":
        return None
    inputs, turns = case.inputs(), {}
    for backend in _BACKENDS:
        layer = build_peer(case, "sdpa", backend)
        layer.module.to(case.device, case.dtype)
        turn = partial(layer.step, inputs, training)
        # PyTorch warns why a backend does not support the case, then raises.
        with warnings.catch_warnings(action="ignore"):
            try:
                turn()
            except RuntimeError:
                continue
        turns[backend.name] = turn
    times = time_turns(turns, next(iter(turns), ""), repeats=5, device=case.device)
    medians = {name: milliseconds[1] for name, (milliseconds, _) in times.items()}
    return SDPBackend.__members__[min(medians, key=medians.__getitem__)] if medians else None


class _Attention(nn.Module):
    """Projections around a kernel: one for queries, keys and values on a CPU, three on a GPU, whichever is faster."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.heads, parts = case.heads, 1 if case.device == "cpu" else 3
        self.inputs = nn.ModuleList(nn.Linear(case.width, 3 * case.width // parts) for _ in range(parts))
        self.out = nn.Linear(case.width, case.width)

    def forward(self, x: Tensor, mask: Tensor | None, kernel: _Kernel) -> Tensor:
        projected = [part for project in self.inputs for part in project(x).chunk(3 // len(self.inputs), -1)]
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in projected)
        return self.out(kernel(q, k, v, mask).transpose(1, 2).flatten(2))


def _sdpa(case: Case, backend: SDPBackend | None) -> _Kernel:
    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        allowed = None if mask is None else mask[:, None, None, :]
        with nullcontext() if backend is None else sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, is_causal=case.is_causal)

    return attend


def _flex(case: Case) -> _Kernel:
    """FlexAttention, compiled for the shapes of the case, with the block mask made beforehand."""
    real = case.key_mask()

    def causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return q >= k

    def padded(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        assert real is not None
        return real[b, k]

    block_mask = None
    if case.mask != "full":
        mask_mod, batch = (causal, None) if case.is_causal else (padded, case.batch)
        block_mask = create_block_mask(mask_mod, batch, None, case.length, case.length, device=case.device)
    # A function is compiled for a few shapes only, then no more.
    torch.compiler.reset()
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda q, k, v, mask: compiled(q, k, v, block_mask=block_mask)


def _flash(case: Case) -> _Kernel:
    flash: Any = import_module("flash_attn").flash_attn_func

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return flash(*(part.transpose(1, 2) for part in (q, k, v)), causal=case.is_causal).transpose(1, 2)

    return attend


def _hidden(case: Case) -> Tensor | None:
    """(L, L), True at the keys that a causal row must not see."""
    if not case.is_causal:
        return None
    return torch.ones(case.length, case.length, dtype=torch.bool, device=case.device).triu(1)


def _multihead(case: Case) -> Contender:
    mha, hidden = nn.MultiheadAttention(case.width, case.heads, batch_first=True), _hidden(case)

    def call(x: Tensor, mask: Tensor | None) -> Tensor:
        padding = None if mask is None else ~mask
        return mha(x, x, x, need_weights=False, key_padding_mask=padding, attn_mask=hidden, is_causal=case.is_causal)[0]

    return Contender("mha", mha, call)


def _t5(case: Case) -> Contender:
    """Hugging Face's T5 attention, without biases and relative positions; it builds whole matrices of weights."""
    config: Any = T5Config(
        d_model=case.width, d_kv=case.width // case.heads, num_heads=case.heads, dropout_rate=0.0, is_decoder=False
    )
    config._attn_implementation = "eager"
    layer, hidden = T5Attention(config, has_relative_attention_bias=False, layer_idx=0), _hidden(case)

    def call(x: Tensor, mask: Tensor | None) -> Tensor:
        left_out = hidden if mask is None else ~mask[:, None, None, :]
        if left_out is None:
            return layer(x, mask=None)[0]
        return layer(x, mask=x.new_zeros(left_out.shape).masked_fill_(left_out, torch.finfo(x.dtype).min))[0]

    return Contender("t5", layer, call)
