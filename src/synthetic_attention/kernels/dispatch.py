"""`attend`: mask, softmax, dropout and the product with V, by the kernel that fits the form of the logits."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from ..layout import is_transformed
from ..logits import FactoredLogits, GroupedLogits, Logits, MixedLogits, OuterLogits, SharedLogits, repeat_heads
from .batched import batched_attention, is_supported
from .blocks import has_triton, wide
from .blockwise import blockwise_attention
from .eager import eager_attention
from .inner import inner_attention
from .shared import CachedLogits, cached_attention, shared_attention


def attend(
    logits: Logits,
    value: Tensor,
    attention_mask: Tensor | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    query_offset: int = 0,
    *,
    attn_bias: Tensor | None = None,
    group_size: int = 1,
) -> Tensor:
    """softmax(logits) · value, equation Y = softmax(S(X)) G(X) of the paper, by the cheapest way the form allows.

    No (B, H, T, S) matrix is stored unless a query is alone (a decoding step), or it is asked for: under
    `torch.nn.attention.sdpa_kernel(SDPBackend.MATH)`, and under the transforms of `torch.func`, the equation is
    computed as it is written and has all derivatives. The other kernels support first derivatives only, in
    reverse mode. Groups of heads are attended one by one.

    Args:
        logits: T rows and as many columns S as `value` has keys.
        value: (B, H, S, D); (B, H / group_size, S, D) where heads share values.
        attention_mask: (B, S), 1/True at the keys that may be seen; None for all.
        is_causal: row t sees keys ≤ query_offset + t.
        dropout_p: probability with which weights are dropped. Where the weights are the same for all examples
            (only shared logits), so is the dropout mask, as in the authors' code.
        query_offset: position of the first row among the keys.
        attn_bias: added to the logits, (T, S), (H, T, S) or (B or 1, H or 1, T, S); its gradient is computed.
        group_size: how many heads in a row share a value; above 1 the logits have to be those of all heads.

    Returns:
        (B, H, T, D). A row that may see no key is zeros.

    Raises:
        ValueError: logits, value and mask do not fit together, dropout_p is no probability, or query_offset negative.
    """
    _check_arguments(logits, value, attention_mask, dropout_p, query_offset)
    batch, _, columns, _ = value.shape
    heads = value.shape[1] * group_size
    mask, offset = None if attention_mask is None else attention_mask.bool(), query_offset if is_causal else None
    if attn_bias is not None:
        logits = logits.plus(SharedLogits.from_bias(attn_bias, batch, heads, logits.rows, columns).scores)
    if not torch.compiler.is_exporting():
        _check_terms(logits, logits.rows, (batch, heads, columns))
    if not columns or logits.rows <= 1 or not batch or _as_written():
        return eager_attention(logits, value, mask, offset, dropout_p)
    value = repeat_heads(value, heads)
    if isinstance(logits, GroupedLogits):
        return _attend_groups(logits, value, mask, offset, dropout_p)

    if isinstance(logits, CachedLogits) and not dropout_p:
        cached = logits.lookup(offset)
        if cached is not None and (mask is None or (value.dtype != torch.float16 and cached.has_small_range)):
            return cached_attention(cached.weights.expand(heads, -1, -1), value, mask, offset)
    factored = FactoredLogits.of(logits)
    if (scores := factored.shared) is not None:
        # Scores for one example are for all; scores for one head are for all heads.
        scores = scores[0] if scores.dim() == 4 and scores.shape[0] == 1 else scores
        factored.shared = scores if scores.shape[-3] == heads else scores.expand(*scores.shape[:-3], heads, -1, -1)
    if not factored.inner and not factored.outer:
        scores = factored.weighted_shared()
        if scores.dim() == 4:
            return eager_attention(logits, value, mask, offset, dropout_p)
        dropout = F.dropout(torch.ones_like(scores, dtype=wide(scores)), dropout_p) if dropout_p > 0 else None
        if value.device.type != "cpu" and is_supported(scores, value, mask):
            return batched_attention(scores, value, mask, offset, dropout, _is_finite(logits))
        return shared_attention(scores, value, mask, offset, dropout)
    if factored.inner and not factored.outer and _fused(factored, value, mask, offset, dropout_p):
        bias = None if factored.shared is None else factored.weighted_shared()
        return inner_attention(factored.joined(), bias, value, mask, offset, dropout_p)
    return _kernel(factored, value)(factored, value, mask, offset, dropout_p)


def _check_arguments(logits: Logits, value: Tensor, mask: Tensor | None, dropout_p: float, query_offset: int) -> None:
    """Raise TypeError or ValueError, as `attend` says."""
    if not 0 <= dropout_p <= 1:
        raise ValueError(f"got dropout_p={dropout_p}; expected a probability in [0, 1]")
    if query_offset < 0:
        raise ValueError(f"got query_offset={query_offset}; expected the position of the first row, at least 0")
    if not isinstance(logits, Logits):
        raise TypeError(f"got logits of type {type(logits).__name__}; expected one of the forms in logits.py")
    if len(value.shape) != 4:
        raise ValueError(f"got a value of shape {tuple(value.shape)}; expected (B, H, S, D)")
    expected = value.shape[0], value.shape[2]
    if mask is not None and mask.shape != expected:
        raise ValueError(f"got an attention_mask of shape {tuple(mask.shape)}; expected (B, S) = {expected}")


def _attend_groups(
    logits: GroupedLogits, value: Tensor, mask: Tensor | None, offset: int | None, dropout_p: float
) -> Tensor:
    """`attend` for each group of heads: values are split, and results joined, as the values are laid out."""
    # By feature, (H, D, B, S), or by token, (B, S, H, D).
    order, back = ((1, 3, 0, 2), (2, 0, 3, 1)) if value.stride(-1) != 1 else ((0, 2, 1, 3), (0, 2, 1, 3))
    parts = value.permute(order).split(logits.sizes, dim=order.index(1))
    outputs = [
        attend(group, part.permute(back), mask, offset is not None, dropout_p, offset or 0)
        for group, part in zip(logits.groups, parts, strict=True)
    ]
    return torch.cat([y.permute(order) for y in outputs], dim=order.index(1)).permute(back)


def _kernel(factored: FactoredLogits, value: Tensor) -> Callable[..., Tensor]:
    """Triton, where it computes these logits, or blocks of rows."""
    if value.is_cuda and has_triton(value):
        from .triton_attention import supports, triton_attention

        if supports(factored, value):
            return triton_attention
    return blockwise_attention


def _is_finite(logits: Logits) -> bool:
    """Whether shared logits come from parameters alone: only what is added to these hides keys with −inf."""
    if isinstance(logits, MixedLogits):
        return all(_is_finite(term) for term in logits.terms)
    return isinstance(logits, CachedLogits)


def _as_written() -> bool:
    """Whether to compute the equation as it is written: under a transform, or with only the MATH backend of SDPA."""
    if torch.compiler.is_compiling():
        # An exported graph has standard operators only: it runs where this package is not installed.
        return torch.compiler.is_exporting()
    flags = torch.backends.cuda
    fused = flags.flash_sdp_enabled() or flags.mem_efficient_sdp_enabled() or flags.cudnn_sdp_enabled()
    return is_transformed() or not fused


# Up to this many keys, blocks are faster on a CPU than the fused kernel over values padded to the width of the keys.
BLOCKWISE_KEYS = 512


def _fused(factored: FactoredLogits, value: Tensor, mask: Tensor | None, offset: int | None, dropout_p: float) -> bool:
    """Whether PyTorch's fused kernel takes these inner (and shared) logits without storing (B, H, T, S), and pays."""
    # The weight of a frozen R may be trained.
    shared = [x for x in (factored.shared, factored.shared_weight) if x is not None]
    if factored.shared is not None and torch.is_grad_enabled() and any(x.requires_grad for x in shared):
        return False
    # The kernel takes scores and mask as one tensor, (B, H, T, S): blocks are faster.
    if factored.shared is not None and mask is not None:
        return False
    # It computes keys that causal rows do not see: Triton is faster.
    if factored.shared is not None and offset is not None and _kernel(factored, value) is not blockwise_attention:
        return False
    if value.device.type != "cpu":
        return True
    columns, width = value.shape[-2:]
    widths = sum(term.key.shape[-1] for term in factored.inner)
    return dropout_p == 0 and (widths == width or columns > BLOCKWISE_KEYS)


def _check_terms(logits: Logits, rows: int, sizes: tuple[int, int, int]) -> None:
    """Raise ValueError unless all terms have these rows, and these examples, heads and keys (B, H, S)."""
    if isinstance(logits, MixedLogits):
        for term in logits.terms:
            _check_terms(term, rows, sizes)
        return
    if isinstance(logits, GroupedLogits):
        if sum(logits.sizes) != sizes[1]:
            raise ValueError(f"got groups of {logits.sizes} heads with a value for {sizes[1]}; expected its H")
        for group, heads in zip(logits.groups, logits.sizes, strict=True):
            _check_terms(group, rows, (sizes[0], heads, sizes[2]))
        return
    (batch, heads, own_rows, own_columns), (all_batch, all_heads, columns) = logits.shape, sizes
    fits = (batch, heads) == (all_batch, all_heads)
    if isinstance(logits, SharedLogits):
        fits = batch in (1, all_batch) and heads in (1, all_heads)
    if isinstance(logits, OuterLogits):
        own_columns = min(own_columns, columns)
    if not fits or own_rows != rows or own_columns != columns:
        raise ValueError(
            f"got logits of shape {tuple(logits.shape)} with a value for (B, H, S) = {sizes}; expected logits of its B "
            "and H, with exactly its S columns (cut them to the keys in use), and as many rows in all terms of a "
            "mixture"
        )
