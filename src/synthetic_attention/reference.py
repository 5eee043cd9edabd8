"""The paper's equations, one plain function each: the oracle of the tests.

Everything here is written for reading, not for speed: one sequence and one head at a time, in the notation of
"Synthesizer: Rethinking Self-Attention in Transformer Models" (arXiv 2005.00743). Results have the dtype of the
arguments, so float64 arguments give a float64 answer. Nothing else in the package imports this file.

Letters: N tokens, M keys, d the width of the model, k the width of one head. Weights multiply from the right (Y =
X W), so W is (inputs, outputs), the transpose of ``nn.Linear.weight``.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Bias = Tensor | None


def affine(x: Tensor, weight: Tensor, bias: Bias = None) -> Tensor:
    """X W + b."""
    return x @ weight if bias is None else x @ weight + bias


def vanilla(x: Tensor, w_q: Tensor, w_k: Tensor, b_q: Bias = None, b_k: Bias = None) -> Tensor:
    """S(X) = (X W_Q)(X W_K)ᵀ / √k, (N, N); the row is the query.

    Args:
        x: (N, d) tokens.
        w_q, w_k: (d, k) projections of this head; b_q, b_k: (k,) their biases.
    """
    return affine(x, w_q, b_q) @ affine(x, w_k, b_k).T / math.sqrt(w_q.shape[1])


def dense(x: Tensor, w_1: Tensor, w_2: Tensor, b_1: Bias = None, b_2: Bias = None) -> Tensor:
    """Row i is W₂ relu(W₁ X_i + b₁) + b₂, (N, N): the logits of a token depend on that token alone.

    Args:
        x: (N, d) tokens.
        w_1: (d, k) the columns of W₁ that belong to this head; b_1: (k,).
        w_2: (k, N_max) this head's second layer, one output a key; the first N are used; b_2: (N_max,).
    """
    return torch.stack([affine(torch.relu(affine(token, w_1, b_1)), w_2, b_2)[: len(x)] for token in x])


def random(r: Tensor, length: int) -> Tensor:
    """S(X) = R for any X: the leading (length, length) corner of the (N_max, N_max) parameter."""
    return r[:length, :length]


def relative_random(r: Tensor, length: int) -> Tensor:
    """R[i, j] = r[i − j], a Toeplitz matrix; distances beyond the last take the last of their side. Not in the paper.

    Args:
        r: (2N − 1,), the logits of the distances −(N − 1) … N − 1.
    """
    last = len(r) // 2
    rows = [[r[max(-last, min(last, i - j)) + last] for j in range(length)] for i in range(length)]
    return torch.stack([torch.stack(row) for row in rows])


def factorized_random(r_1: Tensor, r_2: Tensor, length: int) -> Tensor:
    """S(X) = R₁ R₂ᵀ for R₁, R₂ of shape (N_max, rank), cut to (length, length)."""
    return (r_1 @ r_2.T)[:length, :length]


def outer(a: Tensor, b: Tensor, length: int) -> Tensor:
    """C[j] = A[j mod a] · B[j div a] for the first `length` keys, (N, length): A is tiled, B repeated.

    Args:
        a: (N, a) and b: (N, b) factors, with a·b ≥ length.
    """
    width = a.shape[-1]
    return torch.stack([a[:, j % width] * b[:, j // width] for j in range(length)], dim=-1)


def factorized_dense(
    x: Tensor, w_1: Tensor, w_a: Tensor, w_b: Tensor, b_1: Bias = None, b_a: Bias = None, b_b: Bias = None
) -> Tensor:
    """Row i is the outer product of B and A, flattened: [j] = A[j mod a] · B[j div a].

    A = W_A F + b_A and B = W_B F + b_B with the common F = relu(W₁ X_i + b₁).

    Args:
        x, w_1, b_1: as in `dense`.
        w_a: (k, a), w_b: (k, b) this head's two output layers, a·b ≥ N; b_a: (a,), b_b: (b,).
    """
    hidden = torch.relu(affine(x, w_1, b_1))
    return outer(affine(hidden, w_a, b_a), affine(hidden, w_b, b_b), len(x))


def mixture(logits: Sequence[Tensor], alphas: Sequence[float | Tensor] | Tensor) -> Tensor:
    """α₁S₁(X) + … + αₙSₙ(X): mixed on the logits, so that one softmax follows."""
    return torch.stack([alpha * term for alpha, term in zip(alphas, logits, strict=True)]).sum(0)


def visible_keys(
    queries: int, keys: int, key_mask: Tensor | None = None, is_causal: bool = False, query_offset: int = 0
) -> Tensor:
    """Which keys each query may attend to: (queries, keys), True where it may.

    Args:
        key_mask: (keys,), true (1) for a real token.
        is_causal: row t sees keys ≤ query_offset + t.
    """
    real = [True] * keys if key_mask is None else [bool(m) for m in key_mask]
    last = [query_offset + t if is_causal else keys for t in range(queries)]
    return torch.tensor([[real[s] and s <= last[t] for s in range(keys)] for t in range(queries)], dtype=torch.bool)


def masked_softmax(logits: Tensor, visible: Tensor) -> Tensor:
    """Softmax over the visible keys of each row, all of them (N, M); a row that sees no key is zeros."""
    rows = []
    for row, seen in zip(logits, visible.to(logits.device), strict=True):
        rows.append(torch.zeros_like(row).masked_scatter(seen, torch.softmax(row[seen], dim=-1)))
    return torch.stack(rows)


def attend(
    logits: Tensor,
    value: Tensor,
    key_mask: Tensor | None = None,
    is_causal: bool = False,
    query_offset: int = 0,
    attn_bias: Tensor | None = None,
) -> Tensor:
    """Y = softmax(S) V, (B, H, T, v), for a batch of heads, each by itself.

    Args:
        logits: (B, H, T, S); a dimension B of 1 is shared by the batch.
        value: (B, H, S, v).
        key_mask: (B, S), true (1) for a real token.
        attn_bias: anything that broadcasts to (B, H, T, S), added to the logits.
    """
    batch, heads, keys, _ = value.shape
    queries = logits.shape[-2]
    logits = logits.expand(batch, heads, queries, keys)
    if attn_bias is not None:
        logits = logits + attn_bias
    outputs = []
    for b in range(batch):
        mask = None if key_mask is None else key_mask[b]
        visible = visible_keys(queries, keys, mask, is_causal, query_offset)
        outputs.append(torch.stack([masked_softmax(logits[b, h], visible) @ value[b, h] for h in range(heads)]))
    return torch.stack(outputs)


def synthesizer(
    x: Tensor,
    head_logits: Sequence[Callable[[Tensor], Tensor]],
    w_v: Tensor,
    w_o: Tensor,
    b_v: Bias = None,
    b_o: Bias = None,
    *,
    is_causal: bool = False,
) -> Tensor:
    """The attention of one sequence without padding, (N, d): softmax(S_h(X)) G(X) of all heads, joined and projected.

    Args:
        x: (N, d) tokens.
        head_logits: for each head the function X -> S_h(X), (N, d) -> (N, N); e.g. ``lambda x: dense(x, w_1, w_2)``.
        w_v: (d, heads·k) the value projection G, head by head; b_v: (heads·k,).
        w_o: (heads·k, d) the output projection; b_o: (d,).
        is_causal: a token sees itself and the tokens before it.
    """
    visible = visible_keys(len(x), len(x), is_causal=is_causal)
    values = affine(x, w_v, b_v).chunk(len(head_logits), dim=-1)
    heads = [masked_softmax(s(x), visible) @ v for s, v in zip(head_logits, values, strict=True)]
    return affine(torch.cat(heads, dim=-1), w_o, b_o)


def convolution(x: Tensor, logits: Tensor, before: int) -> Tensor:
    """Σ_k softmax(w)_k X_{i + k − before}, (N, h·k): lightweight and dynamic convolution (Wu et al. 2019).

    The softmax is over the window; positions outside the sequence count as zeros.

    Args:
        x: (N, h·k) gated features, head by head.
        logits: w, (h, C) for every token alike (lightweight), or (N, h, C) (dynamic).
        before: tokens of a window that are before its own.
    """
    heads, size = logits.shape[-2:]
    y = torch.zeros_like(x).unflatten(-1, (heads, -1))
    weights = torch.softmax(logits, dim=-1).expand(len(x), heads, size)
    for i in range(len(x)):
        for k in range(size):
            if 0 <= i + k - before < len(x):
                y[i] += weights[i, :, k, None] * x[i + k - before].unflatten(-1, (heads, -1))
    return y.flatten(1)


def local_dense(x: Tensor, w_1: Tensor, w_2: Tensor, before: int, b_1: Bias = None, b_2: Bias = None) -> Tensor:
    """The weights (N, N) of a dense Synthesizer that sees a window (Xu et al. 2021).

    Row i is softmax(W₂ relu(W₁ X_i + b₁) + b₂) over the tokens of the sequence from i − before on.

    Args:
        x, w_1, b_1: as in `dense`.
        w_2: (k, C) this head's second layer, one output a place in the window; b_2: (C,).
        before: tokens of a window that are before its own.
    """
    places = affine(torch.relu(affine(x, w_1, b_1)), w_2, b_2)
    logits, visible = x.new_zeros(len(x), len(x)), x.new_zeros(len(x), len(x), dtype=torch.bool)
    for i in range(len(x)):
        for c in range(w_2.shape[1]):
            j = i + c - before
            if 0 <= j < len(x):
                logits[i, j], visible[i, j] = places[i, c], True
    return masked_softmax(logits, visible)


def linformer(query: Tensor, key: Tensor, value: Tensor, e: Tensor, f: Tensor) -> Tensor:
    """softmax(Q (E K)ᵀ / √k) F V of one head, (N, k) (Wang et al. 2020, equation 7).

    Args:
        query, key, value: (N, k).
        e, f: (sums, N_max); the first N columns are used.
    """
    logits = query @ (e[:, : len(key)] @ key).T / math.sqrt(query.shape[1])
    return torch.softmax(logits, dim=-1) @ (f[:, : len(key)] @ value)
