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
from .blockwise import ARGUMENTS, Attention, Block
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
# Kinds of calls, each of its own kernels, that failed.
_failed: set[Any] = set()


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
            warnings.warn(
                f"got {reason} from Triton in {launch.__name__} of attention; expected its kernels to compile and "
                "start. Slower operations give the same results instead: see docs/gpu.md",
                RuntimeWarning,
                stacklevel=2,
            )
            return False
        return True

    return attempt


@dataclass
class Call(Attention):
    """The arguments of the kernels, with one inner and one outer term at most.

    Attributes:
        flag: (1,), with shared logits; the kernels do nothing, and leave their outputs as they are, where it is 0.
    """

    flag: Tensor | None = None

    @property
    def matrices(self) -> tuple[Tensor | None, ...]:
        """Query, key, tiled and repeated; None where a term is absent."""
        absent = None, None
        return *next(iter(self.inner), absent), *next(iter(self.outer), absent)

    def kind(self) -> tuple[Any, ...]:
        """What kernels are compiled for."""
        dtypes = [None if x is None else x.dtype for x in self._arguments()[0]]
        return self.value.device, self.offset is None, *dtypes, *self._constants().values()

    def draw(self, seed: Tensor, index: int, block: Block, weights: Tensor) -> Tensor:
        """As the kernels do, so that blocks of rows can compute their backward."""
        device, heads = weights.device, self.value.shape[1]
        b, h, t = (torch.arange(x.start, x.stop, device=device) for x in (block.b, block.h, block.t))
        stream = (seed + b[:, None] * heads + h).flatten()[:, None, None]
        place = t[:, None] * self.value.shape[2] + torch.arange(block.columns, device=device)
        return (philox_uniform(stream, place) >= self.dropout_p).to(weights.dtype)

    def empty_outputs(self) -> tuple[Tensor, Tensor]:
        """The output (B, T, H, D) and the logarithms of its denominators (B, H, T)."""
        batch, heads, *_ = self.value.shape
        return super().empty_outputs(), self.value.new_empty(batch, heads, self.rows, dtype=torch.float32)

    def forward(self) -> tuple[Tensor, Tensor]:
        """The output and the logarithms; those are NaN if blocks of rows took over."""
        out, lse = self.empty_outputs()
        if not self.launch_forward(out.transpose(1, 2), lse):
            self.write(out)
            lse.fill_(torch.nan)
        return out, lse

    def saved(self, outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return outputs

    def backward(self, grad: Tensor, saved: Sequence[Any], needs: Sequence[bool]) -> list[Tensor | None]:
        (out, lse), into = saved, self.buffers(any(needs[1:3]), self.parts())
        if self.launch_backward(grad.transpose(1, 2), out.transpose(1, 2), lse, into):
            return self._sums(into)
        return super().backward(grad, saved, needs)

    @_unless_it_fails
    def launch_forward(self, out: Tensor, lse: Tensor) -> None:
        """Write the output (B, H, T, D), of any strides, and lse (B, H, T)."""
        with torch.cuda.device_of(self.value):
            forward_kernel[self._grid()](out, lse, out.stride(), *self._arguments(), **self._constants())

    @_unless_it_fails
    def launch_backward(self, grad: Tensor, out: Tensor, lse: Tensor, into: Call) -> None:
        """Write the gradients of `into.value` and of what else `into` has, all (B, …) for keys and `bias`.

        `into.shared` is (parts, H, T, S), `into.weight` (H, parts, tiles).
        """
        batch, heads, columns, _ = self.value.shape
        delta, constants, (terms, strides, sizes) = torch.empty_like(lse), self._constants(), self._arguments()
        with torch.cuda.device_of(self.value):
            own = {name: constants[name] for name in ("H", "M", "BLOCK_V")}
            delta_kernel[self._grid()](delta, grad, out, grad.stride(), out.stride(), terms, sizes, **own)
            given = (grad, grad.stride(), lse, delta, terms, strides, sizes)
            to_query, to_key, *to_outer = into.matrices
            if self.inner or self.outer:
                exact, targets = torch.empty_like(lse), (to_query, *to_outer)
                backward_rows_kernel[self._grid()](*targets, exact, *map(_stride, targets), *given, **constants)
                given = (grad, grad.stride(), lse, exact, terms, strides, sizes)
            by_column = (into.value, to_key, into.bias, _stride(into.value), _stride(to_key))
            backward_columns_kernel[batch, triton.cdiv(columns, self.tile.step), heads](*by_column, *given, **constants)
            if into.shared is not None:
                parts = into.shared.shape[0]
                backward_shared_kernel[self._count(), heads, parts](
                    into.shared, into.weight, batch, -(-batch // parts), *given, **constants
                )

    def buffers(self, train_shared: bool, parts: int) -> Call:
        """What `launch_backward` writes, the gradient of R in this many parts of the batch."""
        batch, heads, columns, _ = self.value.shape

        def by_token(x: Tensor) -> Tensor:
            """(B, H, …) stored as (B, T or S, H, …), as the projections read it."""
            _, _, length, width = x.shape
            return x.new_empty(batch, length, heads, width).transpose(1, 2)

        into = Call(
            by_token(self.value),
            inner=[(by_token(query), by_token(key)) for query, key in self.inner],
            # Causal kernels leave later blocks out.
            outer=[(by_token(tiled), by_token(repeated).zero_()) for tiled, repeated in self.outer],
        )
        if self.bias is not None:
            into.bias = self.value.new_empty(batch, heads, columns, dtype=torch.float32)
        if self.shared is not None and train_shared:
            dtype = self.shared.dtype if parts == 1 else torch.float32
            into.shared = self.value.new_empty(parts, *self.shared.shape, dtype=dtype)
            if self.weight is not None:
                into.weight = self.value.new_empty(heads, parts, self._count(), dtype=torch.float32)
        return into

    def _sums(self, into: Call) -> list[Tensor | None]:
        """The gradients in the shapes of the arguments."""
        if self.inner and len(self.inner[0][1]) < len(self.value):
            ((query, key),) = into.inner
            # In this order of axes the sum keeps the layout.
            into.inner = [(query, key.transpose(1, 2).sum(dim=0, keepdim=True).transpose(1, 2))]
        if into.bias is not None:
            into.bias = into.bias.sum(dim=0)
        if into.shared is not None:
            into.shared = into.shared[0] if len(into.shared) == 1 else into.shared.sum(dim=0)
        if self.weight is not None and into.weight is not None:
            total = into.weight.sum(dim=(1, 2))
            into.weight = total.sum(dim=0, keepdim=True) if len(self.weight) == 1 else total
        return into.tensors()

    @property
    def tile(self) -> _Tile:
        """In half precision 64 × 64 is the fastest of twelve on an H100; wider and exact ones need more registers."""
        step = self.outer[0][0].shape[-1] if self.outer else 32 if self._is_exact else 64
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
        others = self.shared, self.weight, self.bias, mask, self.seed, self.kept, self.flag
        terms = Terms._make([self.value, *self.matrices, *others])
        matrices = [stride for x in self.matrices for stride in _stride(x)[:3]]
        shared = (0, 0) if self.shared is None else _stride(self.shared)[:2]
        weight = 0 if self.weight is None or len(self.weight) == 1 else self.weight.stride(0)
        strides = Strides._make([*_stride(self.value), *matrices, *shared, weight])
        columns, width = self.value.shape[2:]
        offset = self.offset if self.offset is not None and self.offset < columns - 1 else None
        given = (self.rows, columns, self.tile.step, offset, self.dropout_p, self._key_width, width)
        return terms, strides, Sizes(*given)

    @property
    def _is_exact(self) -> bool:
        return self.value.dtype == torch.float32

    @property
    def _key_width(self) -> int:
        return self.inner[0][0].shape[-1] if self.inner else 1

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
            "num_stages": 2 if self._is_exact or self.outer or self._widest > 64 else 3,
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
    terms = (factored.joined(),) if factored.inner else ()
    inner = [_by_row(x.to(value.dtype)) for term in terms for x in (term.scaled_query, term.key)]
    outer = [_by_row(x) for term in factored.outer for x in (term.tiled, term.repeated)]
    shared = None if factored.shared is None else _by_row(factored.shared)
    bias = None if factored.bias is None else factored.bias.contiguous()
    mask = None if mask is None else mask.contiguous()
    seed = torch.randint(2**62, (1,), device=value.device) if dropout_p > 0 else None
    out, _ = _forward(value, shared, factored.shared_weight, bias, inner, outer, mask, offset, dropout_p, seed)
    return out.transpose(1, 2)


def _by_row(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


_forward = operator("triton", Call.of, ARGUMENTS, 2)
