"""softmax(logits) · V on a GPU in Triton: mixtures with R, and outer products, for which PyTorch has no fused kernel.

As in flash attention, a program holds a tile of the weights of one example and head at a time, and the backward
computes them again. The gradient of R is a sum over the batch: a program owns a tile of it and loops over the
examples. So nothing is added by atomics, and results are the same in every run.

The logits have one inner and one outer term at most. Inside the kernels they are in base 2, that is, multiplied by
log₂ e. With an outer term a block of columns has as many as the tiled factor is wide: its logits are that factor times
one number of each row.

Shape legend: B batch, H heads, T queries (rows), S keys (columns), K width of a query, D width of a value; M rows and
N columns of a tile. Arguments of a kernel that are None are absent, and so is what they are for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..logits import FactoredLogits
from .blocks import refuse_second_derivative

# Wider queries, values and outer factors do not fit into the registers.
_WIDEST = 128
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@triton.jit
def _load(pointer, rows, count, stride_row, columns, width, stride_column):
    """The entries (rows, columns) of a matrix (count, width); zeros outside of it."""
    inside = (rows < count)[:, None] & (columns < width)[None, :]
    places = rows.to(tl.int64)[:, None] * stride_row + columns[None, :] * stride_column
    return tl.load(pointer + places, mask=inside, other=0.0)


@triton.jit
def _store(pointer, values, rows, count, stride_row, columns, width, stride_column):
    inside = (rows < count)[:, None] & (columns < width)[None, :]
    places = rows.to(tl.int64)[:, None] * stride_row + columns[None, :] * stride_column
    tl.store(pointer + places, values.to(pointer.dtype.element_ty), mask=inside)


@triton.jit
def _is_off(FLAG):
    """Whether a flag on the device says that there is nothing to do."""
    off = False
    if FLAG is not None:
        off = tl.load(FLAG) == 0
    return off


@triton.jit
def _columns(block, S, step, N: tl.constexpr):
    """Columns of a block, and which of them exist."""
    place = tl.arange(0, N)
    columns = block * step + place
    return columns, (place < step) & (columns < S)


@triton.jit
def _scores(
    Q, K, R, W, C, TILED, REPEATED, MASK, stride_Q, stride_K, stride_R, stride_W, stride_TILED, stride_REPEATED,
    b, h, block, rows, columns, real, T, S, step, offset, scale, width_K,
    N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile (M, N) of logits of example b and head h in base 2, −inf where a key is hidden."""
    log2_e: tl.constexpr = 1.4426950408889634
    in_K = tl.arange(0, BLOCK_K)
    scores = tl.zeros([rows.shape[0], N], tl.float32)
    if Q is not None:
        q = _load(Q + b * stride_Q[0] + h * stride_Q[1], rows, T, stride_Q[2], in_K, width_K, 1)
        k = _load(K + b * stride_K[0] + h * stride_K[1], columns, S, stride_K[2], in_K, width_K, 1)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * log2_e)
    if TILED is not None:
        tiled, repeated = _outer_factors(
            TILED, REPEATED, stride_TILED, stride_REPEATED, b, h, block, rows, T, step, N
        )  # fmt: skip
        scores += tiled * repeated[:, None] * log2_e
    if R is not None:
        factor = log2_e
        if W is not None:
            factor = tl.load(W + h * stride_W).to(tl.float32) * log2_e
        r = _load(R + h * stride_R[0], rows, T, stride_R[1], columns, S, 1)
        scores += r.to(tl.float32) * factor
    if C is not None:
        scores += tl.load(C + h * S + columns, mask=real, other=0.0).to(tl.float32)[None, :] * log2_e
    visible = (rows < T)[:, None] & real[None, :]
    if MASK is not None:
        visible = visible & (tl.load(MASK + b * S + columns, mask=real, other=0) != 0)[None, :]
    if offset is not None:
        visible = visible & (columns[None, :] <= rows[:, None] + offset)
    return tl.where(visible, scores, float("-inf"))


@triton.jit
def _outer_factors(
    TILED, REPEATED, stride_TILED, stride_REPEATED, b, h, block, rows, T, step, N: tl.constexpr
):  # fmt: skip
    """Of a block of columns: the tiled factor (M, N) and the number of each row (M,), in float32."""
    place = tl.arange(0, N)
    tiled = _load(TILED + b * stride_TILED[0] + h * stride_TILED[1], rows, T, stride_TILED[2], place, step, 1)
    column = REPEATED + b * stride_REPEATED[0] + h * stride_REPEATED[1] + block
    repeated = tl.load(column + rows.to(tl.int64) * stride_REPEATED[2], mask=rows < T, other=0.0)
    return tiled.to(tl.float32), repeated.to(tl.float32)


@triton.jit
def _kept(SEED, KEPT, b, h, rows, columns, T, S, dropout_p, H: tl.constexpr):
    """Factors of dropout: KEPT (H, T, S), or 0 or 1 / (1 − p) from a stream of each example and head."""
    if KEPT is not None:
        kept = _load(KEPT + h * T * S, rows, T, S, columns, S, 1).to(tl.float32)
    else:
        draw = tl.rand(tl.load(SEED) + b * H + h, rows[:, None] * S + columns[None, :])
        kept = tl.where(draw >= dropout_p, 1.0 / (1.0 - dropout_p), 0.0)
    return kept


@triton.jit
def _forward_kernel(
    OUT, LSE, V, Q, K, R, W, C, TILED, REPEATED, MASK, SEED, KEPT, FLAG,
    stride_OUT, stride_V, stride_Q, stride_K, stride_R, stride_W, stride_TILED, stride_REPEATED,
    T, S, step, offset, scale, dropout_p, width_K, width_V,
    H: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """OUT of M rows of an example and head, and LSE, the logarithm of their denominators in base 2."""
    if _is_off(FLAG):
        return
    # Examples first: programs that run together read the same tiles of R. Among causal rows the longest first.
    b, h = tl.program_id(0).to(tl.int64), tl.program_id(2).to(tl.int64)
    start = (tl.num_programs(1) - 1 - tl.program_id(1)) * M
    rows, in_V = start + tl.arange(0, M), tl.arange(0, BLOCK_V)
    highest = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    out = tl.zeros([M, BLOCK_V], tl.float32)
    last = S
    if offset is not None:
        last = min(S, offset + start + M)
    for block in range(0, tl.cdiv(last, step)):
        columns, real = _columns(block, S, step, N)
        scores = _scores(
            Q, K, R, W, C, TILED, REPEATED, MASK,
            stride_Q, stride_K, stride_R, stride_W, stride_TILED, stride_REPEATED,
            b, h, block, rows, columns, real, T, S, step, offset, scale, width_K, N, BLOCK_K, PRECISION,
        )  # fmt: skip
        now = tl.maximum(highest, tl.max(scores, 1))
        base = tl.where(now == float("-inf"), 0.0, now)
        shrink = tl.exp2(highest - base)
        weights = tl.exp2(scores - base[:, None])
        total = total * shrink + tl.sum(weights, 1)
        highest = now
        if SEED is not None or KEPT is not None:
            weights *= _kept(SEED, KEPT, b, h, rows, columns, T, S, dropout_p, H)
        v = _load(V + b * stride_V[0] + h * stride_V[1], columns, S, stride_V[2], in_V, width_V, stride_V[3])
        out = tl.dot(weights.to(v.dtype), v, out * shrink[:, None], input_precision=PRECISION)
    empty = total == 0.0
    out /= tl.where(empty, 1.0, total)[:, None]
    _store(OUT + b * stride_OUT[0] + h * stride_OUT[1], out, rows, T, stride_OUT[2], in_V, width_V, stride_OUT[3])
    # In the backward the weights of a row without keys are 2^−inf = 0.
    lse = tl.where(empty, float("inf"), highest + tl.log2(tl.where(empty, 1.0, total)))
    tl.store(LSE + (b * H + h) * T + rows, lse, mask=rows < T)


@triton.jit
def _backward_rows_kernel(
    DELTA, DQ, DTILED, DREPEATED, G, OUT, LSE, V, Q, K, R, W, C, TILED, REPEATED, MASK, SEED, KEPT, FLAG,
    stride_DQ, stride_DTILED, stride_DREPEATED, stride_G,
    stride_OUT, stride_V, stride_Q, stride_K, stride_R, stride_W, stride_TILED, stride_REPEATED,
    T, S, step, offset, scale, dropout_p, width_K, width_V,
    H: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """DELTA = Σ G · OUT of M rows of an example and head, and the gradients of their queries and outer factors."""
    if _is_off(FLAG):
        return
    b, h = tl.program_id(0).to(tl.int64), tl.program_id(2).to(tl.int64)
    start = (tl.num_programs(1) - 1 - tl.program_id(1)) * M
    rows, in_V = start + tl.arange(0, M), tl.arange(0, BLOCK_V)
    row = (b * H + h) * T + rows
    g = _load(G + b * stride_G[0] + h * stride_G[1], rows, T, stride_G[2], in_V, width_V, stride_G[3])
    out = _load(OUT + b * stride_OUT[0] + h * stride_OUT[1], rows, T, stride_OUT[2], in_V, width_V, stride_OUT[3])
    delta = tl.sum(g.to(tl.float32) * out.to(tl.float32), 1)
    tl.store(DELTA + row, delta, mask=rows < T)
    if Q is not None or TILED is not None:
        lse = tl.load(LSE + row, mask=rows < T, other=float("inf"))
        in_K, place = tl.arange(0, BLOCK_K), tl.arange(0, N)
        dq, d_tiled = tl.zeros([M, BLOCK_K], tl.float32), tl.zeros([M, N], tl.float32)
        last = S
        if offset is not None:
            last = min(S, offset + start + M)
        for block in range(0, tl.cdiv(last, step)):
            columns, real = _columns(block, S, step, N)
            scores = _scores(
                Q, K, R, W, C, TILED, REPEATED, MASK,
                stride_Q, stride_K, stride_R, stride_W, stride_TILED, stride_REPEATED,
                b, h, block, rows, columns, real, T, S, step, offset, scale, width_K, N, BLOCK_K, PRECISION,
            )  # fmt: skip
            weights = tl.exp2(scores - lse[:, None])
            v = _load(V + b * stride_V[0] + h * stride_V[1], columns, S, stride_V[2], in_V, width_V, stride_V[3])
            d_weights = tl.dot(g, tl.trans(v), input_precision=PRECISION)
            if SEED is not None or KEPT is not None:
                d_weights *= _kept(SEED, KEPT, b, h, rows, columns, T, S, dropout_p, H)
            d_scores = weights * (d_weights - delta[:, None])
            if Q is not None:
                k = _load(K + b * stride_K[0] + h * stride_K[1], columns, S, stride_K[2], in_K, width_K, 1)
                dq = tl.dot(d_scores.to(k.dtype), k, dq, input_precision=PRECISION)
            if TILED is not None:
                tiled, repeated = _outer_factors(
                    TILED, REPEATED, stride_TILED, stride_REPEATED, b, h, block, rows, T, step, N
                )  # fmt: skip
                d_tiled += d_scores * repeated[:, None]
                column = DREPEATED + b * stride_DREPEATED[0] + h * stride_DREPEATED[1] + block
                d_repeated = tl.sum(d_scores * tiled, 1).to(DREPEATED.dtype.element_ty)
                tl.store(column + rows.to(tl.int64) * stride_DREPEATED[2], d_repeated, mask=rows < T)
        if Q is not None:
            _store(DQ + b * stride_DQ[0] + h * stride_DQ[1], dq * scale, rows, T, stride_DQ[2], in_K, width_K, 1)
        if TILED is not None:
            to = DTILED + b * stride_DTILED[0] + h * stride_DTILED[1]
            _store(to, d_tiled, rows, T, stride_DTILED[2], place, step, 1)


@triton.jit
def _backward_columns_kernel(
    DV, DK, DC, G, DELTA, LSE, V, Q, K, R, W, C, TILED, REPEATED, MASK, SEED, KEPT, FLAG,
    stride_DV, stride_DK, stride_G,
    stride_V, stride_Q, stride_K, stride_R, stride_W, stride_TILED, stride_REPEATED,
    T, S, step, offset, scale, dropout_p, width_K, width_V,
    H: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of keys and values of an example and head, and DC (B, H, S) of the key bias."""
    if _is_off(FLAG):
        return
    b, block, h = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2).to(tl.int64)
    columns, real = _columns(block, S, step, N)
    in_K, in_V = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    v = _load(V + b * stride_V[0] + h * stride_V[1], columns, S, stride_V[2], in_V, width_V, stride_V[3])
    dv, dk = tl.zeros([N, BLOCK_V], tl.float32), tl.zeros([N, BLOCK_K], tl.float32)
    dc = tl.zeros([N], tl.float32)
    first = 0
    if offset is not None:
        first = max(0, block * step - offset) // M
    for tile in range(first, tl.cdiv(T, M)):
        rows = tile * M + tl.arange(0, M)
        row = (b * H + h) * T + rows
        scores = _scores(
            Q, K, R, W, C, TILED, REPEATED, MASK,
            stride_Q, stride_K, stride_R, stride_W, stride_TILED, stride_REPEATED,
            b, h, block, rows, columns, real, T, S, step, offset, scale, width_K, N, BLOCK_K, PRECISION,
        )  # fmt: skip
        weights = tl.exp2(scores - tl.load(LSE + row, mask=rows < T, other=float("inf"))[:, None])
        g = _load(G + b * stride_G[0] + h * stride_G[1], rows, T, stride_G[2], in_V, width_V, stride_G[3])
        kept_weights = weights
        d_weights = tl.dot(g, tl.trans(v), input_precision=PRECISION)
        if SEED is not None or KEPT is not None:
            kept = _kept(SEED, KEPT, b, h, rows, columns, T, S, dropout_p, H)
            kept_weights = weights * kept
            d_weights *= kept
        dv = tl.dot(tl.trans(kept_weights.to(g.dtype)), g, dv, input_precision=PRECISION)
        if Q is not None or C is not None:
            d_scores = weights * (d_weights - tl.load(DELTA + row, mask=rows < T, other=0.0)[:, None])
            if Q is not None:
                q = _load(Q + b * stride_Q[0] + h * stride_Q[1], rows, T, stride_Q[2], in_K, width_K, 1)
                dk = tl.dot(tl.trans(d_scores.to(q.dtype)), q, dk, input_precision=PRECISION)
            if C is not None:
                dc += tl.sum(d_scores, 0)
    # Columns of the next block are not written.
    own = tl.where(real, columns, S)
    _store(DV + b * stride_DV[0] + h * stride_DV[1], dv, own, S, stride_DV[2], in_V, width_V, stride_DV[3])
    if Q is not None:
        _store(DK + b * stride_DK[0] + h * stride_DK[1], dk * scale, own, S, stride_DK[2], in_K, width_K, 1)
    if C is not None:
        tl.store(DC + (b * H + h) * S + columns, dc, mask=real)


@triton.jit(do_not_specialize=["B", "examples"])
def _backward_shared_kernel(
    DR, DW, G, DELTA, LSE, V, Q, K, R, W, C, TILED, REPEATED, MASK, SEED, KEPT, FLAG, stride_G,
    stride_V, stride_Q, stride_K, stride_R, stride_W, stride_TILED, stride_REPEATED,
    B, examples, T, S, step, offset, scale, dropout_p, width_K, width_V,
    H: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of the gradient of R, summed over `examples` of the batch, and what it adds to that of the weight.

    DR (parts, H, T, S) and DW (H, parts, tiles) are contiguous.
    """
    if _is_off(FLAG):
        return
    blocks = tl.cdiv(S, step)
    tile, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    h, part = tl.program_id(1).to(tl.int64), tl.program_id(2)
    rows, in_V = tile * M + tl.arange(0, M), tl.arange(0, BLOCK_V)
    columns, real = _columns(block, S, step, N)
    total = tl.zeros([M, N], tl.float32)
    first = part.to(tl.int64) * examples
    count = min(B - part * examples, examples)
    if offset is not None:
        # A tile that no row sees.
        count = tl.where(block * step <= tile * M + M - 1 + offset, count, 0)
    for i in range(0, count):
        b = first + i
        row = (b * H + h) * T + rows
        scores = _scores(
            Q, K, R, W, C, TILED, REPEATED, MASK,
            stride_Q, stride_K, stride_R, stride_W, stride_TILED, stride_REPEATED,
            b, h, block, rows, columns, real, T, S, step, offset, scale, width_K, N, BLOCK_K, PRECISION,
        )  # fmt: skip
        weights = tl.exp2(scores - tl.load(LSE + row, mask=rows < T, other=float("inf"))[:, None])
        g = _load(G + b * stride_G[0] + h * stride_G[1], rows, T, stride_G[2], in_V, width_V, stride_G[3])
        v = _load(V + b * stride_V[0] + h * stride_V[1], columns, S, stride_V[2], in_V, width_V, stride_V[3])
        d_weights = tl.dot(g, tl.trans(v), input_precision=PRECISION)
        if SEED is not None or KEPT is not None:
            d_weights *= _kept(SEED, KEPT, b, h, rows, columns, T, S, dropout_p, H)
        total += weights * (d_weights - tl.load(DELTA + row, mask=rows < T, other=0.0)[:, None])
    if W is not None:
        # Of a score −inf the weight is 0, and so is the sum.
        r = _load(R + h * stride_R[0], rows, T, stride_R[1], columns, S, 1).to(tl.float32)
        own = tl.sum(tl.sum(tl.where(total == 0.0, 0.0, total * r), 1), 0)
        tl.store(DW + (h * tl.num_programs(2) + part) * tl.num_programs(0) + tl.program_id(0), own)
        total *= tl.load(W + h * stride_W).to(tl.float32)
    own_columns = tl.where(real, columns, S)
    _store(DR + (part * H + h) * T * S, total, rows, T, S, own_columns, S, 1)


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
        flag: (1,); the kernels do nothing, and leave their outputs as they are, where it is 0.
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

    @property
    def rows(self) -> int:
        for x in (self.query, self.shared, self.tiled):
            if x is not None:
                return x.shape[-2]
        raise ValueError("got no logits")

    def empty_outputs(self) -> tuple[Tensor, Tensor]:
        """The output (B, T, H, D) and the logarithms of its denominators (B, H, T)."""
        batch, heads, _, width = self.value.shape
        out = self.value.new_empty(batch, self.rows, heads, width)
        return out, self.value.new_empty(batch, heads, self.rows, dtype=torch.float32)

    def forward(self, out: Tensor, lse: Tensor) -> None:
        """Write the output (B, H, T, D), of any strides, and lse (B, H, T)."""
        batch, heads, *_ = self.value.shape
        tile = self._tile(128, 64)
        grid = (batch, triton.cdiv(self.rows, tile.rows), heads)
        arguments = (out, lse, *self._pointers(), out.stride(), *self._strides(), *self._numbers(tile))
        with torch.cuda.device_of(self.value):
            _forward_kernel[grid](*arguments, **self._constants(tile))

    def backward(self, grad: Tensor, out: Tensor, lse: Tensor, into: Call) -> None:
        """Write the gradients of `into.value` and of what else `into` has, all (B, …) for `key` and `bias`.

        `into.shared` is (parts, H, T, S), `into.weight` (H, parts, tiles).
        """
        batch, heads, *_ = self.value.shape
        delta = torch.empty_like(lse)
        pointers, strides = self._pointers(), self._strides()
        with torch.cuda.device_of(self.value):
            tile = self._tile(128, 64)
            _backward_rows_kernel[(batch, triton.cdiv(self.rows, tile.rows), heads)](
                *(delta, into.query, into.tiled, into.repeated, grad, out, lse, *pointers),
                *(_stride(into.query), _stride(into.tiled), _stride(into.repeated), grad.stride(), out.stride()),
                *(*strides, *self._numbers(tile)),
                **self._constants(tile),
            )
            tile = self._tile(64, 128)
            _backward_columns_kernel[(batch, triton.cdiv(self.value.shape[2], tile.step), heads)](
                *(into.value, into.key, into.bias, grad, delta, lse, *pointers),
                *(_stride(into.value), _stride(into.key), grad.stride(), *strides, *self._numbers(tile)),
                **self._constants(tile),
            )
            if into.shared is None:
                return
            parts, tile = into.shared.shape[0], self._shared_tile()
            _backward_shared_kernel[(self._count(tile), heads, parts)](
                *(into.shared, into.weight, grad, delta, lse, *pointers, grad.stride(), *strides),
                *(batch, -(-batch // parts), *self._numbers(tile)),
                **self._constants(tile),
            )

    def empty_gradients(self, train_shared: bool, parts: int) -> Call:
        """What `backward` writes, the gradient of R in this many parts of the batch."""
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
                into.weight = x.new_empty(heads, parts, self._count(self._shared_tile()), dtype=torch.float32)
        return into

    def _tile(self, rows: int, columns: int) -> _Tile:
        """Rows and columns of a tile, fewer where registers and shared memory are short."""
        is_exact = self.value.dtype == torch.float32
        width = max(self.value.shape[-1], 0 if self.query is None else self.query.shape[-1])
        area = 64 * 64 if width > 64 or self.seed is not None or self.kept is not None else 64 * 128
        area = area // 4 if is_exact else area
        step = min(columns, 32 if is_exact else 64 if area <= 64 * 64 else 128)
        step = step if self.tiled is None else self.tiled.shape[-1]
        rows = max(16, min(rows, area // _block(step)))
        return _Tile(rows, _block(step), step, warps=8 if rows * step > 64 * 64 or is_exact else 4)

    def _shared_tile(self) -> _Tile:
        return self._tile(128, 64)

    def _count(self, tile: _Tile) -> int:
        """Tiles of the logits of a head."""
        return triton.cdiv(self.rows, tile.rows) * triton.cdiv(self.value.shape[2], tile.step)

    def parts(self) -> int:
        """Parts of the batch that fill the device, two programs for each of its processors."""
        batch, heads, *_ = self.value.shape
        processors = 8
        if self.value.is_cuda:
            processors = torch.cuda.get_device_properties(self.value.device).multi_processor_count
        examples = max(1, batch * heads * self._count(self._shared_tile()) // (2 * processors))
        return -(-batch // min(examples, batch))

    def _pointers(self) -> tuple[Tensor | None, ...]:
        return (
            *(self.value, self.query, self.key, self.shared, self.weight, self.bias, self.tiled, self.repeated),
            *(None if self.mask is None else self.mask.view(torch.uint8), self.seed, self.kept, self.flag),
        )

    def _strides(self) -> tuple[Any, ...]:
        shared = (0, 0) if self.shared is None else _stride(self.shared)[:2]
        weight = 0 if self.weight is None or len(self.weight) == 1 else self.weight.stride(0)
        tensors = (_stride(self.value), _stride(self.query), _stride(self.key))
        return (*tensors, shared, weight, _stride(self.tiled), _stride(self.repeated))

    def _numbers(self, tile: _Tile) -> tuple[Any, ...]:
        width = 1 if self.query is None else self.query.shape[-1]
        columns = self.value.shape[2]
        offset = self.offset if self.offset is not None and self.offset < columns - 1 else None
        return (self.rows, columns, tile.step, offset, self.scale, self.dropout_p, width, self.value.shape[-1])

    def _constants(self, tile: _Tile) -> dict[str, Any]:
        width = 1 if self.query is None else self.query.shape[-1]
        return {
            "H": self.value.shape[1],
            "M": tile.rows,
            "N": tile.columns,
            "BLOCK_K": _block(width),
            "BLOCK_V": _block(self.value.shape[-1]),
            "PRECISION": "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee",
            "num_warps": tile.warps,
            "num_stages": 2,
        }


@dataclass(frozen=True)
class _Tile:
    """Rows and columns of a tile of logits; `step` columns of it are in use."""

    rows: int
    columns: int
    step: int
    warps: int


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


def _operator(name: str, schema: str) -> Any:
    return torch.library.custom_op(f"synthetic_attention::{name}", mutates_args=(), schema=schema)


@_operator("triton_forward", f"({_ARGUMENTS}) -> (Tensor, Tensor)")
def _forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    """The output (B, T, H, D), and the logarithms of its denominators."""
    call = Call(*arguments)
    out, lse = call.empty_outputs()
    call.forward(out.transpose(1, 2), lse)
    return out, lse


@_forward.register_fake
def _forward_fake(*arguments: Any) -> tuple[Tensor, Tensor]:
    return Call(*arguments).empty_outputs()


@_operator("triton_backward", f"(Tensor grad, Tensor out, Tensor lse, {_ARGUMENTS}, bool train_shared) -> Tensor[]")
def _backward(grad: Tensor, out: Tensor, lse: Tensor, *arguments: Any) -> list[Tensor]:
    """The gradients of the floating-point tensors that there are; without `train_shared` not that of shared."""
    *arguments, train_shared = arguments  # type: ignore[assignment]
    call = Call(*arguments)
    into = call.empty_gradients(train_shared or call.weight is not None, call.parts())
    call.backward(grad.transpose(1, 2), out.transpose(1, 2), lse, into)
    return _as_inputs(call, into, train_shared)


@_backward.register_fake
def _backward_fake(grad: Tensor, out: Tensor, lse: Tensor, *arguments: Any) -> list[Tensor]:
    *arguments, train_shared = arguments  # type: ignore[assignment]
    call = Call(*arguments)
    return _as_inputs(call, call.empty_gradients(train_shared or call.weight is not None, parts=1), train_shared)


def _trained(call: Call, train_shared: bool) -> list[Tensor]:
    shared = call.shared if train_shared else None
    every = (call.value, call.query, call.key, shared, call.weight, call.bias, call.tiled, call.repeated)
    return [x for x in every if x is not None]


def _as_inputs(call: Call, into: Call, train_shared: bool) -> list[Tensor]:
    """The gradients in the shapes and dtypes of the arguments."""
    if call.key is not None and into.key is not None and call.key.shape[0] < into.key.shape[0]:
        into.key = into.key.sum(dim=0, keepdim=True)
    if call.bias is not None and into.bias is not None:
        into.bias = into.bias.sum(dim=0).to(call.bias.dtype)
    if call.shared is not None and into.shared is not None:
        into.shared = into.shared[0] if len(into.shared) == 1 else into.shared.sum(dim=0).to(call.shared.dtype)
    if call.weight is not None and into.weight is not None:
        per_head = into.weight.sum(dim=(1, 2))
        into.weight = (per_head.sum(dim=0, keepdim=True) if len(call.weight) == 1 else per_head).to(call.weight.dtype)
    return _trained(into, train_shared)


def _setup_context(ctx, inputs, output) -> None:
    *tensors, ctx.scale, ctx.offset, ctx.dropout_p = inputs
    out, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.save_for_backward(out, lse, *tensors)


def _autograd(ctx, grad: Tensor, _: Tensor | None):
    out, lse, *tensors = ctx.saved_tensors
    shared = tensors[3]
    train_shared = shared is not None and ctx.needs_input_grad[3]
    grads = iter(_backward(grad, out, lse, *tensors, ctx.scale, ctx.offset, ctx.dropout_p, train_shared))
    missing = [x is None or (x is shared and not train_shared) for x in tensors[:8]]
    return *(None if absent else next(grads) for absent in missing), None, None, None, None, None


_forward.register_autograd(_autograd, setup_context=_setup_context)
_backward.register_autograd(refuse_second_derivative)
