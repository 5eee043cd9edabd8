"""The parts of a layer: norms, feed-forward, cross-attention, and the block that joins them.

Shape legend: B batch, H heads, T queries, S keys, K width of a head.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from transformers import EncoderDecoderCache
from transformers.activations import ACT2FN
from transformers.cache_utils import CacheLayerMixin
from transformers.modeling_layers import GradientCheckpointingLayer

from ..attention import KeyValueCache
from ..baselines import Baseline
from ..kernels import attend, attention_weights
from ..linear import Linear
from ..logits import InnerLogits
from ..masks import Padding
from ..self_attention import build
from .configuration import SynthesizerConfig
from .dropout import add_dropout

__all__ = [
    "CrossAttention",
    "FeedForward",
    "SynthesizerBlock",
    "init_linear",
    "make_embedding",
    "make_head",
    "make_norm",
]


def make_norm(config: SynthesizerConfig) -> nn.Module:
    """The configured norm over d_model."""
    if config.norm_type == "rms_norm":
        return nn.RMSNorm(config.d_model, eps=config.layer_norm_epsilon)
    return nn.LayerNorm(config.d_model, eps=config.layer_norm_epsilon, bias=config.use_bias)


def make_embedding(config: SynthesizerConfig) -> nn.Embedding:
    """The embedding of the vocabulary."""
    embedding = nn.Embedding(config.vocab_size, config.d_model)
    nn.init.normal_(embedding.weight, std=config.initializer_factor * config.d_model**-0.5)
    return embedding


def make_head(config: SynthesizerConfig) -> nn.Linear:
    """The output projection, initialised as the embedding that it may be tied to."""
    head = Linear(config.d_model, config.vocab_size, bias=False)
    nn.init.normal_(head.weight, std=config.initializer_factor * config.d_model**-0.5)
    return head


def init_linear(linear: nn.Linear, factor: float, blocks: int = 1) -> None:
    """Glorot's uniform distribution times `factor`; a fused projection as the `blocks` it consists of."""
    # A weight that came from a checkpoint is marked by transformers; its slices are not, and would be overwritten.
    if not getattr(linear.weight, "_is_hf_initialized", False):
        for rows in linear.weight.chunk(blocks):
            bound = factor * (6 / (rows.shape[0] + rows.shape[1])) ** 0.5
            nn.init.uniform_(rows, -bound, bound)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


class FeedForward(nn.Module):
    """W₂ act(W₁ x), or with a gate W₂ (act(W₁ x) ∘ W₃ x); W₁ and W₃ are one projection."""

    def __init__(self, config: SynthesizerConfig) -> None:
        super().__init__()
        name = config.feed_forward_proj
        self.gated = name.startswith("gated-")
        # T5 means the tanh approximation where it says gated-gelu.
        self.activation = ACT2FN["gelu_new" if name == "gated-gelu" else name.removeprefix("gated-")]
        self.in_proj = Linear(config.d_model, config.d_ff * (2 if self.gated else 1), bias=config.use_bias)
        self.out_proj = Linear(config.d_ff, config.d_model, bias=config.use_bias)
        self.factor = config.initializer_factor
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise all parameters anew."""
        init_linear(self.in_proj, self.factor, blocks=2 if self.gated else 1)
        init_linear(self.out_proj, self.factor)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, d_model) to the same."""
        x = self.in_proj(x)
        if self.gated:
            active, gate = x.chunk(2, dim=-1)
            return cast(Tensor, self.out_proj(self.activation(active) * gate))
        return cast(Tensor, self.out_proj(self.activation(x)))


class CrossAttention(nn.Module):
    """Dot-product attention from the decoder to the encoder's output, in every variant of the paper."""

    def __init__(self, config: SynthesizerConfig, layer_idx: int) -> None:
        super().__init__()
        self.num_heads, self.head_dim = config.num_heads, cast(int, config.d_kv)
        self.dropout, self.layer_idx = config.attention_dropout_rate, layer_idx
        inner = self.num_heads * self.head_dim
        self.q_proj = Linear(config.d_model, inner, bias=config.use_bias)
        self.kv_proj = Linear(config.d_model, 2 * inner, bias=config.use_bias)
        self.out_proj = Linear(inner, config.d_model, bias=config.use_bias)
        self.factor = config.initializer_factor
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise all parameters anew."""
        for linear, blocks in ((self.q_proj, 1), (self.kv_proj, 2), (self.out_proj, 1)):
            init_linear(linear, self.factor, blocks)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        memory_mask: Tensor | None,
        cache: EncoderDecoderCache | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from x (B, T, d_model) to memory (B, S, d_model).

        Args:
            memory_mask: (B, S) bool, True at real tokens; None for all.
            cache: keeps the keys and values of the first call, after which `memory` is not read.

        Returns:
            (B, T, d_model), and the weights (B, H, T, S) or None.
        """
        query_BHTK = self.q_proj(x).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
        key_BHSK, value_BHSK = self._keys_and_values(memory, cache)
        logits = InnerLogits(query_BHTK, key_BHSK, scale=self.head_dim**-0.5)
        dropout = self.dropout if self.training else 0.0
        y = attend(logits, value_BHSK, memory_mask, dropout_p=dropout)
        weights = attention_weights(logits, memory_mask) if need_weights else None
        return self.out_proj(y.transpose(1, 2).flatten(2)), weights

    def _keys_and_values(self, memory: Tensor, cache: EncoderDecoderCache | None) -> tuple[Tensor, Tensor]:
        if cache is not None and cache.is_updated.get(self.layer_idx):
            layer = cache.cross_attention_cache.layers[self.layer_idx]
            assert isinstance(layer, CacheLayerMixin)
            assert layer.keys is not None
            assert layer.values is not None
            return layer.keys, layer.values
        halves = self.kv_proj(memory).chunk(2, dim=-1)
        key_BHSK, value_BHSK = (x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2) for x in halves)
        if cache is not None:
            key_BHSK, value_BHSK = cache.cross_attention_cache.update(key_BHSK, value_BHSK, self.layer_idx)
            cache.is_updated[self.layer_idx] = True
        return key_BHSK, value_BHSK


class SynthesizerBlock(GradientCheckpointingLayer):
    """Self-attention with synthesized weights, cross-attention where there is an encoder to attend to, feed-forward.

    Args:
        config: the model's.
        synthesizer: what makes the logits of this layer, or a baseline in its place.
        layer_idx: which layer of the stack, and of a cache, this is.
        is_causal: a token sees itself and those before it.
        cross_attention: whether the block attends to an encoder.
    """

    def __init__(
        self, config: SynthesizerConfig, synthesizer: str, layer_idx: int, *, is_causal: bool, cross_attention: bool
    ) -> None:
        super().__init__()
        self.is_causal, self.pre_norm, self.dropout = is_causal, config.pre_norm, config.dropout_rate
        self.self_attention = build(
            synthesizer,
            config.d_model,
            config.num_heads,
            config.max_position_embeddings,
            is_causal=is_causal,
            options=config.synthesizer_options,
            head_dim=config.d_kv,
            bias=config.use_bias,
            dropout=config.attention_dropout_rate,
            layer_idx=layer_idx,
        )
        self.self_attention_norm = make_norm(config)
        self.cross_attention = CrossAttention(config, layer_idx) if cross_attention else None
        self.cross_attention_norm = make_norm(config) if cross_attention else None
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = make_norm(config)

    # Tensors that may need a gradient come first and by position, as reentrant checkpointing wants them.
    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        attn_bias: Tensor | None = None,
        *,
        padding: Padding | None = None,
        memory_mask: Tensor | None = None,
        self_attention_cache: KeyValueCache | None = None,
        cross_attention_cache: EncoderDecoderCache | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """One layer.

        Args:
            x: (B, T, d_model).
            memory: (B, S, d_model), the encoder's output.
            attn_bias: added to the logits of self-attention; a baseline has none, and goes without.
            padding: of the tokens in x and in the cache.
            memory_mask: (B, S) bool of the encoder's tokens; None where all are real.
            self_attention_cache: what self-attention updates.
            cross_attention_cache: the cache whose cross-attention half keeps the encoder's keys and values.
            need_weights: return attention weights.

        Returns:
            (B, T, d_model), and the weights of self- and cross-attention, each None where there are none.
        """
        result = self.self_attention(
            self._before(x, self.self_attention_norm),
            padding,
            None if isinstance(self.self_attention, Baseline) else attn_bias,
            self.is_causal,
            need_weights=need_weights,
            cache=self_attention_cache,
        )
        y, self_weights = result if need_weights else (result, None)
        x = self._after(x, y, self.self_attention_norm)
        cross_weights: Tensor | None = None
        if self.cross_attention is not None and self.cross_attention_norm is not None:
            if memory is None:
                raise ValueError("got no encoder output in a block with cross-attention; expected (B, S, d_model)")
            y, cross_weights = self.cross_attention(
                self._before(x, self.cross_attention_norm), memory, memory_mask, cross_attention_cache, need_weights
            )
            x = self._after(x, y, self.cross_attention_norm)
        x = self._after(x, self.feed_forward(self._before(x, self.feed_forward_norm)), self.feed_forward_norm)
        return x, self_weights, cross_weights

    def _before(self, x: Tensor, norm: nn.Module) -> Tensor:
        return cast(Tensor, norm(x)) if self.pre_norm else x

    def _after(self, x: Tensor, y: Tensor, norm: nn.Module) -> Tensor:
        x = add_dropout(x, y, self.dropout, self.training)
        return x if self.pre_norm else cast(Tensor, norm(x))
