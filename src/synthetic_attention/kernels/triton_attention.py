"""softmax(logits) · V on a GPU in Triton: mixtures with R, and outer products, for which PyTorch has no fused kernel.

The logits have one inner and one outer term at most. `triton_kernels.py` has the kernels.

Shape legend: B batch, H heads, T queries, S keys, K width of a query, D width of a value, a · b ≥ S outer factors.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from ..logits import FactoredLogits
from .blocks import operator
from .blockwise import Attention, Block, Factors
from .dropout import philox_uniform
from .triton_kernels import (
    Sizes,
    Strides,
    Terms,
    backward_columns_kernel,
    backward_rows_kernel,
    backward_shared_kernel,
    delta_kernel,
    forward_kernel,
)

# Wider queries, values and outer factors do not fit into the registers.
_WIDEST = 128
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Kinds of calls, each of its own kernels, that failed, and the reasons of which a warning was given.
_failed: set[Any] = set()
_reasons: set[str] = set()


def _unless_it_fails(launch: Callable[..., None]) -> Callable[..., bool]:
    """Whether the kernels ran. If they cannot be compiled or launched, calls of that kind never run them again."""

    def attempt(call: Call, *arguments: Any) -> bool:
        if _failed and call.kind() in _failed:
            return False
        try:
            launch(call, *arguments)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            # An error that leaves the device unusable, such as an illegal memory access, is raised again here.
            if torch.cuda.is_initialized():
                with torch.cuda.device_of(call.value):
                    torch.cuda.synchronize()
            _failed.add(call.kind())
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:400]
            if reason not in _reasons:
                _reasons.add(reason)
                warnings.warn(
                    f"got {reason} from Triton in {launch.__name__} of attention; expected its kernels to compile and "
                    "start. Slower operations give the same results instead: see docs/gpu.md",
                    RuntimeWarning,
                    stacklevel=2,
                )
            return False
        return True

    return attempt


class _Blocks(Attention):
    """Blocks of rows with the dropout of the kernels, so that either can compute the backward of the other."""

    def draw(self, seed: Tensor, index: int, block: Block, weights: Tensor) -> Tensor:
        device, heads = weights.device, self.factors.value.shape[1]
        b, h, t = (torch.arange(x.start, x.stop, device=device) for x in (block.b, block.h, block.t))
        stream = (seed + b[:, None] * heads + h).flatten()[:, None, None]
        place = t[:, None] * self.factors.value.shape[2] + torch.arange(block.columns, device=device)
        return (philox_uniform(stream, place) >= self.dropout_p).to(weights.dtype)


@dataclass
class Call:
    """The arguments of the kernels; None where a term is absent.

    Attributes:
        value: (B, H, S, D).
        query, key: (B, H, T, K) and (B or 1, H, S, K).
        shared, weight: (H, T, S) and its factor, (H,) or (1,).
        bias: (H, S).
        tiled, repeated: (B, H, T, a) and (B, H, T, b).
        mask: (B, S), bool.
        seed: (1,), int64; with dropout.
        kept: (H, T, S), factors of dropout for all examples, in the place of `seed`.
        scale: of the inner product.
        offset: row t sees keys ≤ offset + t; None for all.
        flag: (1,), with shared logits; the kernels do nothing, and leave their outputs as they are, where it is 0.
    """

    value: Tensor
    query: Tensor | None = None
    key: Tensor | None = None
    shared: Tensor | None = None
    weight: Tensor | None = None
    bias: Tensor | None = None
    tiled: Tensor | None = None
    repeated: Tensor | None = None
    mask: Tensor | None = None
    seed: Tensor | None = None
    scale: float = 1.0
    offset: int | None = None
    dropout_p: float = 0.0
    kept: Tensor | None = None
    flag: Tensor | None = None

    def kind(self) -> tuple[Any, ...]:
        """What kernels are compiled for."""
        dtypes = [x.dtype if isinstance(x, Tensor) else None for x in vars(self).values()]
        widths = self.tile, _block(self._key_width), _block(self.value.shape[-1])
        return self.value.device, self.offset is None, *dtypes, *widths

    @property
    def rows(self) -> int:
        return next(x.shape[-2] for x in (self.query, self.shared, self.tiled) if x is not None)

    def empty_outputs(self) -> tuple[Tensor, Tensor]:
        """The output (B, T, H, D) and the logarithms of its denominators (B, H, T)."""
        batch, heads, _, width = self.value.shape
        out = self.value.new_empty(batch, self.rows, heads, width)
        return out, self.value.new_empty(batch, heads, self.rows, dtype=torch.float32)

    def forward(self) -> tuple[Tensor, Tensor]:
        """The output and the logarithms; those are NaN if blocks of rows took over."""
        out, lse = self.empty_outputs()
        if not self.launch_forward(out.transpose(1, 2), lse):
            out, lse = self._by_blocks().forward(), lse.fill_(torch.nan)
        return out, lse

    def saved(self, outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return outputs

    def backward(self, grad: Tensor, saved: Sequence[Any], needs: Sequence[bool]) -> list[Tensor]:
        (out, lse), train_shared = saved, any(needs[3:5])
        into = self.buffers(train_shared, self.parts())
        if self.launch_backward(grad.transpose(1, 2), out.transpose(1, 2), lse, into):
            return self._as_inputs(into, needs)
        total = self._by_blocks().gradients(grad, needs[3])
        query, key = total.inner[0] if total.inner else (None, None)
        tiled, repeated = total.outer[0] if total.outer else (None, None)
        query = None if query is None else query * self.scale
        every = (total.value, query, key, total.shared, total.shared_weight, total.bias, tiled, repeated)
        given = [x for x, need in zip(every, needs, strict=False) if need and x is not None]
        return [to.copy_(x) for to, x in zip(self.empty_gradients(needs), given, strict=True)]

    def empty_gradients(self, needs: Sequence[bool]) -> list[Tensor]:
        return self._as_inputs(self.buffers(any(needs[3:5]), parts=1), needs)

    def _by_blocks(self) -> _Blocks:
        inner = [] if self.query is None or self.key is None else [(self.query * self.scale, self.key)]
        outer = [] if self.tiled is None or self.repeated is None else [(self.tiled, self.repeated)]
        factors = Factors(self.value, self.shared, self.weight, self.bias, inner, outer)
        return _Blocks(factors, self.mask, self.offset, self.dropout_p, self.seed)

    @_unless_it_fails
    def launch_forward(self, out: Tensor, lse: Tensor) -> None:
        """Write the output (B, H, T, D), of any strides, and lse (B, H, T)."""
        with torch.cuda.device_of(self.value):
            forward_kernel[self._grid()](out, lse, out.stride(), *self._arguments(), **self._constants())

    @_unless_it_fails
    def launch_backward(self, grad: Tensor, out: Tensor, lse: Tensor, into: Call) -> None:
        """Write the gradients of `into.value` and of what else `into` has, all (B, …) for `key` and `bias`.

        `into.shared` is (parts, H, T, S), `into.weight` (H, parts, tiles).
        """
        batch, heads, columns, _ = self.value.shape
        delta, constants, (terms, strides, sizes) = torch.empty_like(lse), self._constants(), self._arguments()
        with torch.cuda.device_of(self.value):
            own = {name: constants[name] for name in ("H", "M", "BLOCK_V")}
            delta_kernel[self._grid()](delta, grad, out, grad.stride(), out.stride(), terms, sizes, **own)
            given = (grad, grad.stride(), lse, delta, terms, strides, sizes)
            if self.query is not None or self.tiled is not None:
                exact, targets = torch.empty_like(lse), (into.query, into.tiled, into.repeated)
                backward_rows_kernel[self._grid()](*targets, exact, *map(_stride, targets), *given, **constants)
                given = (grad, grad.stride(), lse, exact, terms, strides, sizes)
            by_column = (into.value, into.key, into.bias, _stride(into.value), _stride(into.key))
            backward_columns_kernel[batch, triton.cdiv(columns, self.tile.step), heads](*by_column, *given, **constants)
            if into.shared is not None:
                parts = into.shared.shape[0]
                backward_shared_kernel[self._count(), heads, parts](
                    into.shared, into.weight, batch, -(-batch // parts), *given, **constants
                )

    def buffers(self, train_shared: bool, parts: int) -> Call:
        """What `launch_backward` writes, the gradient of R in this many parts of the batch."""
        batch, heads, columns, _ = self.value.shape

        def by_token(x: Tensor | None) -> Tensor | None:
            """(B, H, …) stored as (B, T or S, H, …), as the projections read it."""
            if x is None:
                return None
            _, _, length, width = x.shape
            return x.new_empty(batch, length, heads, width).transpose(1, 2)

        into = Call(x := by_token(self.value), by_token(self.query), by_token(self.key))  # type: ignore[arg-type]
        assert x is not None
        if self.bias is not None:
            into.bias = x.new_empty(batch, heads, columns, dtype=torch.float32)
        into.tiled, into.repeated = by_token(self.tiled), by_token(self.repeated)
        if into.repeated is not None:
            # Causal kernels leave later blocks out.
            into.repeated.zero_()
        if self.shared is not None and train_shared:
            dtype = self.shared.dtype if parts == 1 else torch.float32
            into.shared = x.new_empty(parts, *self.shared.shape, dtype=dtype)
            if self.weight is not None:
                into.weight = x.new_empty(heads, parts, self._count(), dtype=torch.float32)
        return into

    def _as_inputs(self, into: Call, needs: Sequence[bool]) -> list[Tensor]:
        """The gradients in the shapes and dtypes of the arguments."""
        if self.key is not None and into.key is not None and self.key.shape[0] < into.key.shape[0]:
            into.key = into.key.sum(dim=0, keepdim=True)
        if self.bias is not None and into.bias is not None:
            into.bias = into.bias.sum(dim=0).to(self.bias.dtype)
        if self.shared is not None and into.shared is not None:
            into.shared = into.shared[0] if len(into.shared) == 1 else into.shared.sum(dim=0).to(self.shared.dtype)
        if self.weight is not None and into.weight is not None:
            total = into.weight.sum(dim=(1, 2))
            into.weight = (total.sum(dim=0, keepdim=True) if len(self.weight) == 1 else total).to(self.weight.dtype)
        every = (into.value, into.query, into.key, into.shared, into.weight, into.bias, into.tiled, into.repeated)
        return [x for x, need in zip(every, needs, strict=False) if need and x is not None]

    @property
    def tile(self) -> _Tile:
        """In half precision 64 × 64 is the fastest of twelve on an H100; wider and exact ones need more registers."""
        step = 32 if self._is_exact else 64
        step = step if self.tiled is None else self.tiled.shape[-1]
        columns, rows = _block(step), 32 if self._is_exact and self._widest > 64 else 64
        return _Tile(max(16, min(rows, 64 * 64 // columns)), columns, step)

    def _grid(self) -> tuple[int, int, int]:
        """A program for each example, head and tile of rows."""
        batch, heads, *_ = self.value.shape
        return batch, triton.cdiv(self.rows, self.tile.rows), heads

    def _count(self) -> int:
        """Tiles of the logits of a head."""
        return triton.cdiv(self.rows, self.tile.rows) * triton.cdiv(self.value.shape[2], self.tile.step)

    def parts(self) -> int:
        """Parts of the batch that fill the device, two programs for each of its processors."""
        batch, heads, *_ = self.value.shape
        processors = 8
        if self.value.is_cuda:
            processors = torch.cuda.get_device_properties(self.value.device).multi_processor_count
        examples = max(1, batch * heads * self._count() // (2 * processors))
        return -(-batch // min(examples, batch))

    def _arguments(self) -> tuple[Terms, Strides, Sizes]:
        mask = None if self.mask is None else self.mask.view(torch.uint8)
        factors = (self.query, self.key, self.shared, self.weight, self.bias, self.tiled, self.repeated)
        terms = Terms(self.value, *factors, mask, self.seed, self.kept, self.flag)
        matrices = (self.query, self.key, self.tiled, self.repeated)
        query, key, tiled, repeated = (_stride(x)[:3] for x in matrices)
        shared = (0, 0) if self.shared is None else _stride(self.shared)[:2]
        weight = 0 if self.weight is None or len(self.weight) == 1 else self.weight.stride(0)
        strides = Strides._make([*_stride(self.value), *query, *key, *shared, weight, *tiled, *repeated])
        columns, width = self.value.shape[2:]
        offset = self.offset if self.offset is not None and self.offset < columns - 1 else None
        given = (self.rows, columns, self.tile.step, offset, self.scale, self.dropout_p, self._key_width, width)
        return terms, strides, Sizes(*given)

    @property
    def _is_exact(self) -> bool:
        return self.value.dtype == torch.float32

    @property
    def _key_width(self) -> int:
        return 1 if self.query is None else self.query.shape[-1]

    @property
    def _widest(self) -> int:
        return max(self._key_width, self.value.shape[-1])

    def _constants(self) -> dict[str, Any]:
        return {
            "H": self.value.shape[1],
            "M": self.tile.rows,
            "N": self.tile.columns,
            "BLOCK_K": _block(self._key_width),
            "BLOCK_V": _block(self.value.shape[-1]),
            "PRECISION": "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee",
            "num_warps": 8 if self._is_exact else 4,
            # Elsewhere three stages do not fit into the shared memory of smaller GPUs, or are slower.
            "num_stages": 2 if self._is_exact or self.tiled is not None or self._widest > 64 else 3,
        }


class _Tile(NamedTuple):
    """Rows and columns of a tile of logits; `step` columns of it are in use."""

    rows: int
    columns: int
    step: int


def _block(width: int) -> int:
    """The size of a block: a power of two, at least what a matrix unit takes."""
    return max(16, triton.next_power_of_2(width))


def _stride(x: Tensor | None) -> tuple[int, ...]:
    """Strides, 0 along axes of one entry; of nothing zeros."""
    return (0,) * 4 if x is None else tuple(0 if n == 1 else s for n, s in zip(x.shape, x.stride(), strict=True))


def supports(factored: FactoredLogits, value: Tensor) -> bool:
    """Whether the kernels compute these logits on this value."""
    if value.dtype not in _DTYPES or value.shape[-1] > _WIDEST or len(factored.outer) > 1:
        return False
    inner = sum(term.key.shape[-1] for term in factored.inner)
    outer = max((term.tiled.shape[-1] for term in factored.outer), default=0)
    fits = inner <= _WIDEST and outer <= (_WIDEST // 2 if inner else _WIDEST)
    return fits and (factored.shared is None or factored.shared.dim() == 3)


def triton_attention(
    factored: FactoredLogits, value: Tensor, mask: Tensor | None, offset: int | None, dropout_p: float
) -> Tensor:
    """softmax(logits) · value as in `attend`, row t sees keys ≤ offset + t; a view of a contiguous (B, T, H, D).

    The logits have to be such that `supports` says so.
    """
    query = key = tiled = repeated = None
    scale = 1.0
    if factored.inner:
        inner = factored.joined()
        scale = inner.scale
        query, key = (_by_row(x.to(value.dtype)) for x in (inner.query, inner.key))
    if factored.outer:
        (outer,) = factored.outer
        tiled, repeated = (_by_row(x) for x in (outer.tiled, outer.repeated))
    shared = None if factored.shared is None else _by_row(factored.shared)
    bias = None if factored.bias is None else factored.bias.contiguous()
    mask = None if mask is None else mask.contiguous()
    seed = torch.randint(2**62, (1,), device=value.device) if dropout_p > 0 else None
    tensors = (value, query, key, shared, factored.shared_weight, bias, tiled, repeated, mask, seed)
    out, _ = _forward(*tensors, scale, offset, dropout_p)
    return out.transpose(1, 2)


def _by_row(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


_ARGUMENTS = (
    "Tensor value, Tensor? query, Tensor? key, Tensor? shared, Tensor? weight, Tensor? bias, Tensor? tiled, "
    "Tensor? repeated, Tensor? mask, Tensor? seed, float scale, SymInt? offset, float dropout_p"
)
_forward = operator("triton", Call, _ARGUMENTS, 2)
