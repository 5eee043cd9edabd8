"""The kernels of `triton_attention.py`: the forward, and the gradients by rows, by columns and of R.

As in flash attention, a program holds a tile of the weights of one example and head at a time, and the backward
computes them again. The gradient of R is a sum over the batch: a program owns a tile of it and loops over the
examples. So nothing is added by atomics, and results are the same in every run.

Logits are in base 2 here, that is, multiplied by log₂ e. With an outer term a block of columns has as many as the tiled
factor is wide: its logits are that factor times one number of each row.

Shape legend: B batch, H heads, T queries (rows), S keys (columns), K width of a query, D width of a value; M rows and
N columns of a tile; b, h the example and head of a program.
"""

from __future__ import annotations

from collections import namedtuple

import triton
import triton.language as tl

# The tensors of `triton_attention.Call`, pointers in a kernel. A term that is None is not compiled.
Terms = namedtuple("Terms", "value query key tiled repeated shared weight bias mask seed kept flag")
# Strides of the terms that may have gaps, by example (b), head, row, and of the value by feature (d), elsewhere 1.
# One tuple, not one for each term: Triton 3.6 loses strides of 1 inside of inner tuples.
Strides = namedtuple(
    "Strides",
    "value_b value_h value_s value_d query_b query_h query_t key_b key_h key_s "
    "tiled_b tiled_h tiled_t repeated_b repeated_h repeated_t shared_h shared_t weight_h",
)
# Numbers of a call: T and S; the columns of a block that are in use; row t sees keys ≤ offset + t, or with None all;
# the probability with which weights are dropped; K and D.
Sizes = namedtuple("Sizes", "rows columns step offset dropout_p key_width value_width")


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
def _load_head(pointer, stride, b, h, rows, count, columns, width, stride_column):
    """Rows of the matrix of an example and head, (count, width)."""
    return _load(pointer + b * stride[0] + h * stride[1], rows, count, stride[2], columns, width, stride_column)


@triton.jit
def _store_head(pointer, stride, b, h, values, rows, count, columns, width, stride_column):
    _store(pointer + b * stride[0] + h * stride[1], values, rows, count, stride[2], columns, width, stride_column)


@triton.jit
def _is_off(terms):
    """Whether the flag on the device says that there is nothing to do."""
    off = False
    if terms.flag is not None:
        off = tl.load(terms.flag) == 0
    return off


@triton.jit
def _columns(block, sizes, N: tl.constexpr):
    """Columns of a block, and which of them exist."""
    place = tl.arange(0, N)
    columns = block * sizes.step + place
    return columns, (place < sizes.step) & (columns < sizes.columns)


@triton.jit
def _queries(terms, strides, sizes, b, h, rows, BLOCK_K: tl.constexpr):
    width = tl.arange(0, BLOCK_K)
    stride = strides.query_b, strides.query_h, strides.query_t
    return _load_head(terms.query, stride, b, h, rows, sizes.rows, width, sizes.key_width, 1)


@triton.jit
def _keys(terms, strides, sizes, b, h, columns, BLOCK_K: tl.constexpr):
    width = tl.arange(0, BLOCK_K)
    stride = strides.key_b, strides.key_h, strides.key_s
    return _load_head(terms.key, stride, b, h, columns, sizes.columns, width, sizes.key_width, 1)


@triton.jit
def _values(terms, strides, sizes, b, h, columns, BLOCK_V: tl.constexpr):
    width = tl.arange(0, BLOCK_V)
    stride = strides.value_b, strides.value_h, strides.value_s
    return _load_head(terms.value, stride, b, h, columns, sizes.columns, width, sizes.value_width, strides.value_d)


@triton.jit
def _outer_factors(terms, strides, sizes, b, h, block, rows, N: tl.constexpr):
    """The tiled factor (M, N) of a block of columns and the number of each row (M,), in float32."""
    stride = strides.tiled_b, strides.tiled_h, strides.tiled_t
    tiled = _load_head(terms.tiled, stride, b, h, rows, sizes.rows, tl.arange(0, N), sizes.step, 1)
    column = terms.repeated + b * strides.repeated_b + h * strides.repeated_h + block
    repeated = tl.load(column + rows.to(tl.int64) * strides.repeated_t, mask=rows < sizes.rows, other=0.0)
    return tiled.to(tl.float32), repeated.to(tl.float32)


@triton.jit
def _scores(
    terms, strides, sizes, b, h, block, rows, columns, real,
    N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile (M, N) of logits in base 2, −inf where a key is hidden."""
    log2_e: tl.constexpr = 1.4426950408889634
    scores = tl.zeros([rows.shape[0], N], tl.float32)
    if terms.query is not None:
        q = _queries(terms, strides, sizes, b, h, rows, BLOCK_K)
        k = _keys(terms, strides, sizes, b, h, columns, BLOCK_K)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * log2_e
    if terms.tiled is not None:
        tiled, repeated = _outer_factors(terms, strides, sizes, b, h, block, rows, N)
        scores += tiled * repeated[:, None] * log2_e
    if terms.shared is not None:
        factor = log2_e
        if terms.weight is not None:
            factor = tl.load(terms.weight + h * strides.weight_h).to(tl.float32) * log2_e
        start, stride = terms.shared + h * strides.shared_h, strides.shared_t
        scores += _load(start, rows, sizes.rows, stride, columns, sizes.columns, 1).to(tl.float32) * factor
    if terms.bias is not None:
        bias = tl.load(terms.bias + h * sizes.columns + columns, mask=real, other=0.0)
        scores += bias.to(tl.float32)[None, :] * log2_e
    visible = (rows < sizes.rows)[:, None] & real[None, :]
    if terms.mask is not None:
        visible = visible & (tl.load(terms.mask + b * sizes.columns + columns, mask=real, other=0) != 0)[None, :]
    if sizes.offset is not None:
        visible = visible & (columns[None, :] <= rows[:, None] + sizes.offset)
    return tl.where(visible, scores, float("-inf"))


@triton.jit
def _kept(terms, sizes, b, h, rows, columns, H: tl.constexpr):
    """Factors of dropout, 0 or 1 / (1 − p): of `kept` (H, T, S), or from a stream of each example and head."""
    kept = 1.0
    if terms.kept is not None:
        start = terms.kept + h * sizes.rows * sizes.columns
        kept = _load(start, rows, sizes.rows, sizes.columns, columns, sizes.columns, 1).to(tl.float32)
    elif terms.seed is not None:
        draw = tl.rand(tl.load(terms.seed) + b * H + h, rows[:, None] * sizes.columns + columns[None, :])
        kept = tl.where(draw >= sizes.dropout_p, 1.0 / (1.0 - sizes.dropout_p), 0.0)
    return kept


@triton.jit
def _gradients(
    G, stride_G, LSE, DELTA, terms, strides, sizes, b, h, block, rows, columns, real,
    H: tl.constexpr, N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile's gradient of the output (M, D), weights after dropout and gradient of the logits (M, N)."""
    scores = _scores(terms, strides, sizes, b, h, block, rows, columns, real, N, BLOCK_K, PRECISION)
    row = (b * H + h) * sizes.rows + rows
    weights = tl.exp2(scores - tl.load(LSE + row, mask=rows < sizes.rows, other=float("inf"))[:, None])
    g = _load_head(G, stride_G, b, h, rows, sizes.rows, tl.arange(0, BLOCK_V), sizes.value_width, stride_G[3])
    v = _values(terms, strides, sizes, b, h, columns, BLOCK_V)
    kept = _kept(terms, sizes, b, h, rows, columns, H)
    d_weights = tl.dot(g, tl.trans(v), input_precision=PRECISION) * kept
    d_scores = weights * (d_weights - tl.load(DELTA + row, mask=rows < sizes.rows, other=0.0)[:, None])
    return g, weights * kept, d_scores


@triton.jit
def _count_blocks(sizes, start, M: tl.constexpr):
    """How many blocks of columns the M rows from `start` see."""
    last = sizes.columns
    if sizes.offset is not None:
        last = min(last, sizes.offset + start + M)
    return tl.cdiv(last, sizes.step)


@triton.jit
def forward_kernel(
    OUT, LSE, stride_OUT, terms, strides, sizes,
    H: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """OUT of M rows of an example and head, and LSE, the logarithm of their denominators in base 2."""
    if _is_off(terms):
        return
    # Examples first: programs that run together read the same tiles of R. Among causal rows the longest first.
    b, h = tl.program_id(0).to(tl.int64), tl.program_id(2).to(tl.int64)
    start = (tl.num_programs(1) - 1 - tl.program_id(1)) * M
    rows = start + tl.arange(0, M)
    highest = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    out = tl.zeros([M, BLOCK_V], tl.float32)
    for block in range(0, _count_blocks(sizes, start, M)):
        columns, real = _columns(block, sizes, N)
        scores = _scores(terms, strides, sizes, b, h, block, rows, columns, real, N, BLOCK_K, PRECISION)
        now = tl.maximum(highest, tl.max(scores, 1))
        base = tl.where(now == float("-inf"), 0.0, now)
        shrink = tl.exp2(highest - base)
        weights = tl.exp2(scores - base[:, None])
        total = total * shrink + tl.sum(weights, 1)
        highest = now
        weights *= _kept(terms, sizes, b, h, rows, columns, H)
        v = _values(terms, strides, sizes, b, h, columns, BLOCK_V)
        out = tl.dot(weights.to(v.dtype), v, out * shrink[:, None], input_precision=PRECISION)
    empty = total == 0.0
    out /= tl.where(empty, 1.0, total)[:, None]
    width = tl.arange(0, BLOCK_V)
    _store_head(OUT, stride_OUT, b, h, out, rows, sizes.rows, width, sizes.value_width, stride_OUT[3])
    # In the backward the weights of a row without keys are 2^−inf = 0.
    lse = tl.where(empty, float("inf"), highest + tl.log2(tl.where(empty, 1.0, total)))
    tl.store(LSE + (b * H + h) * sizes.rows + rows, lse, mask=rows < sizes.rows)


@triton.jit
def delta_kernel(
    DELTA, G, OUT, stride_G, stride_OUT, terms, sizes, H: tl.constexpr, M: tl.constexpr, BLOCK_V: tl.constexpr
):  # fmt: skip
    """DELTA = Σ G · OUT of M rows of an example and head."""
    if _is_off(terms):
        return
    b, h = tl.program_id(0).to(tl.int64), tl.program_id(2).to(tl.int64)
    rows, width = tl.program_id(1) * M + tl.arange(0, M), tl.arange(0, BLOCK_V)
    g = _load_head(G, stride_G, b, h, rows, sizes.rows, width, sizes.value_width, stride_G[3])
    out = _load_head(OUT, stride_OUT, b, h, rows, sizes.rows, width, sizes.value_width, stride_OUT[3])
    delta = tl.sum(g.to(tl.float32) * out.to(tl.float32), 1)
    tl.store(DELTA + (b * H + h) * sizes.rows + rows, delta, mask=rows < sizes.rows)


@triton.jit
def backward_rows_kernel(
    DQ, DTILED, DREPEATED, EXACT, stride_DQ, stride_DTILED, stride_DREPEATED,
    G, stride_G, LSE, DELTA, terms, strides, sizes,
    H: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradients of the queries and outer factors of M rows of an example and head. Such calls have no flag.

    Each row of the gradient of the logits adds up to 0, except that DELTA comes from the rounded output. EXACT is DELTA
    without this error, which the gradients of a head's weight and R would sum over all rows.
    """
    b, h = tl.program_id(0).to(tl.int64), tl.program_id(2).to(tl.int64)
    start = (tl.num_programs(1) - 1 - tl.program_id(1)) * M
    rows = start + tl.arange(0, M)
    dq, d_tiled = tl.zeros([M, BLOCK_K], tl.float32), tl.zeros([M, N], tl.float32)
    error = tl.zeros([M], tl.float32)
    for block in range(0, _count_blocks(sizes, start, M)):
        columns, real = _columns(block, sizes, N)
        _, _, d_scores = _gradients(
            G, stride_G, LSE, DELTA, terms, strides, sizes, b, h, block, rows, columns, real,
            H, N, BLOCK_K, BLOCK_V, PRECISION,
        )  # fmt: skip
        error += tl.sum(d_scores, 1)
        if terms.query is not None:
            k = _keys(terms, strides, sizes, b, h, columns, BLOCK_K)
            dq = tl.dot(d_scores.to(k.dtype), k, dq, input_precision=PRECISION)
        if terms.tiled is not None:
            tiled, repeated = _outer_factors(terms, strides, sizes, b, h, block, rows, N)
            d_tiled += d_scores * repeated[:, None]
            column = DREPEATED + b * stride_DREPEATED[0] + h * stride_DREPEATED[1] + block
            d_repeated = tl.sum(d_scores * tiled, 1).to(DREPEATED.dtype.element_ty)
            tl.store(column + rows.to(tl.int64) * stride_DREPEATED[2], d_repeated, mask=rows < sizes.rows)
    row = (b * H + h) * sizes.rows + rows
    tl.store(EXACT + row, tl.load(DELTA + row, mask=rows < sizes.rows, other=0.0) + error, mask=rows < sizes.rows)
    if terms.query is not None:
        width = tl.arange(0, BLOCK_K)
        _store_head(DQ, stride_DQ, b, h, dq, rows, sizes.rows, width, sizes.key_width, 1)
    if terms.tiled is not None:
        _store_head(DTILED, stride_DTILED, b, h, d_tiled, rows, sizes.rows, tl.arange(0, N), sizes.step, 1)


@triton.jit
def backward_columns_kernel(
    DV, DK, DC, stride_DV, stride_DK, G, stride_G, LSE, DELTA, terms, strides, sizes,
    H: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of keys and values of an example and head, and DC (B, H, S) of the key bias."""
    if _is_off(terms):
        return
    b, block, h = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2).to(tl.int64)
    columns, real = _columns(block, sizes, N)
    dv, dk = tl.zeros([N, BLOCK_V], tl.float32), tl.zeros([N, BLOCK_K], tl.float32)
    dc = tl.zeros([N], tl.float32)
    first = 0
    if sizes.offset is not None:
        first = max(0, block * sizes.step - sizes.offset) // M
    for tile in range(first, tl.cdiv(sizes.rows, M)):
        rows = tile * M + tl.arange(0, M)
        g, weights, d_scores = _gradients(
            G, stride_G, LSE, DELTA, terms, strides, sizes, b, h, block, rows, columns, real,
            H, N, BLOCK_K, BLOCK_V, PRECISION,
        )  # fmt: skip
        dv = tl.dot(tl.trans(weights.to(g.dtype)), g, dv, input_precision=PRECISION)
        if terms.query is not None:
            q = _queries(terms, strides, sizes, b, h, rows, BLOCK_K)
            dk = tl.dot(tl.trans(d_scores.to(q.dtype)), q, dk, input_precision=PRECISION)
        if terms.bias is not None:
            dc += tl.sum(d_scores, 0)
    # Columns of the next block are not written.
    own, width = tl.where(real, columns, sizes.columns), tl.arange(0, BLOCK_V)
    _store_head(DV, stride_DV, b, h, dv, own, sizes.columns, width, sizes.value_width, stride_DV[3])
    if terms.query is not None:
        width = tl.arange(0, BLOCK_K)
        _store_head(DK, stride_DK, b, h, dk, own, sizes.columns, width, sizes.key_width, 1)
    if terms.bias is not None:
        tl.store(DC + (b * H + h) * sizes.columns + columns, dc, mask=real)


@triton.jit(do_not_specialize=["B", "examples"])
def backward_shared_kernel(
    DR, DW, B, examples, G, stride_G, LSE, DELTA, terms, strides, sizes,
    H: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of the gradient of R, summed over `examples` of the batch, and what it adds to that of the weight.

    DR (parts, H, T, S) and DW (H, parts, tiles) are contiguous.
    """
    if _is_off(terms):
        return
    blocks = tl.cdiv(sizes.columns, sizes.step)
    tile, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    h, part = tl.program_id(1).to(tl.int64), tl.program_id(2)
    rows = tile * M + tl.arange(0, M)
    columns, real = _columns(block, sizes, N)
    total = tl.zeros([M, N], tl.float32)
    first, count = part.to(tl.int64) * examples, min(B - part * examples, examples)
    if sizes.offset is not None:
        # A tile that no row sees.
        count = tl.where(block * sizes.step <= tile * M + M - 1 + sizes.offset, count, 0)
    for i in range(0, count):
        _, _, d_scores = _gradients(
            G, stride_G, LSE, DELTA, terms, strides, sizes, first + i, h, block, rows, columns, real,
            H, N, BLOCK_K, BLOCK_V, PRECISION,
        )  # fmt: skip
        total += d_scores
    if terms.weight is not None:
        # A score of −inf has the weight 0, and so is the sum.
        start, stride = terms.shared + h * strides.shared_h, strides.shared_t
        r = _load(start, rows, sizes.rows, stride, columns, sizes.columns, 1).to(tl.float32)
        own = tl.sum(tl.sum(tl.where(total == 0.0, 0.0, total * r), 1), 0)
        tl.store(DW + (h * tl.num_programs(2) + part) * tl.num_programs(0) + tl.program_id(0), own)
        total *= tl.load(terms.weight + h * strides.weight_h).to(tl.float32)
    start, own_columns = DR + (part * H + h) * sizes.rows * sizes.columns, tl.where(real, columns, sizes.columns)
    _store(start, total, rows, sizes.rows, sizes.columns, own_columns, sizes.columns, 1)
