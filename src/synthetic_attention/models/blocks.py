"""The parts of a layer (norm, feed-forward, cross-attention) and the block that joins them.

Shape legend: B batch, H heads, T queries, S keys, K width of a head.
"""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn
from transformers import Cache, EncoderDecoderCache
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from ..attention import build
from ..baselines import Baseline
from ..kernels import attend, attention_weights
from ..kernels.dropout import add_dropout
from ..kernels.linear import linear, split_heads
from ..layout import TokenLayout
from ..logits import InnerLogits
from .configuration import SynthesizerConfig

__all__ = ["MLP", "CrossAttention", "SynthesizerBlock", "init_linear", "make_embedding", "make_lm_head", "make_norm"]


def make_norm(config: SynthesizerConfig) -> nn.Module:
    """The configured norm over d_model."""
    if config.norm_type == "rms_norm":
        return nn.RMSNorm(config.d_model, eps=config.layer_norm_epsilon)
    return nn.LayerNorm(config.d_model, eps=config.layer_norm_epsilon, bias=config.use_bias)


def make_embedding(rows: int, config: SynthesizerConfig) -> nn.Embedding:
    """An embedding of d_model features, initialised as T5's."""
    embedding = nn.Embedding(rows, config.d_model)
    nn.init.normal_(embedding.weight, std=config.initializer_factor * config.d_model**-0.5)
    return embedding


def make_lm_head(config: SynthesizerConfig) -> nn.Linear:
    """The output projection, initialised as the embedding that it may be tied to."""
    head = nn.Linear(config.d_model, config.vocab_size, bias=False)
    nn.init.normal_(head.weight, std=config.initializer_factor * config.d_model**-0.5)
    return head


def init_linear(linear: nn.Linear, factor: float) -> None:
    """Glorot's uniform distribution times `factor`; zeros for the bias."""
    bound = factor * (6 / sum(linear.weight.shape)) ** 0.5
    nn.init.uniform_(linear.weight, -bound, bound)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


class MLP(nn.Module):
    """The feed-forward layer: down(act(up(x))), or gated down(act(gate(x)) ∘ up(x))."""

    def __init__(self, config: SynthesizerConfig) -> None:
        super().__init__()
        name = config.feed_forward_proj
        # T5 means the tanh approximation by "gated-gelu".
        self.activation = ACT2FN["gelu_new" if name == "gated-gelu" else name.removeprefix("gated-")]
        self.gate_proj: nn.Linear | None = None
        if name.startswith("gated-"):
            self.gate_proj = nn.Linear(config.d_model, config.d_ff, bias=config.use_bias)
        self.up_proj = nn.Linear(config.d_model, config.d_ff, bias=config.use_bias)
        self.down_proj = nn.Linear(config.d_ff, config.d_model, bias=config.use_bias)
        for module in (self.gate_proj, self.up_proj, self.down_proj):
            if module is not None:
                init_linear(module, config.initializer_factor)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, d_model) to the same shape."""
        if self.gate_proj is None:
            hidden = self.activation(linear(self.up_proj, x))
        else:
            hidden = self.activation(linear(self.gate_proj, x)) * linear(self.up_proj, x)
        return linear(self.down_proj, hidden)


class CrossAttention(nn.Module):
    """Dot-product attention from the decoder to the encoder's output, the same in every variant of the paper."""

    def __init__(self, config: SynthesizerConfig, layer_idx: int) -> None:
        super().__init__()
        self.num_heads, self.head_dim = config.num_heads, cast(int, config.d_kv)
        self.dropout, self.layer_idx = config.attention_dropout_rate, layer_idx
        inner = self.num_heads * self.head_dim
        self.q_proj = nn.Linear(config.d_model, inner, bias=config.use_bias)
        self.k_proj = nn.Linear(config.d_model, inner, bias=config.use_bias)
        self.v_proj = nn.Linear(config.d_model, inner, bias=config.use_bias)
        self.out_proj = nn.Linear(inner, config.d_model, bias=config.use_bias)
        for module in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            init_linear(module, config.initializer_factor)

    def forward(
        self,
        x: Tensor,
        encoder_hidden_states: Tensor,
        encoder_mask: Tensor | None = None,
        cache: EncoderDecoderCache | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from x (B, T, d_model) to encoder_hidden_states (B, S, d_model).

        Args:
            encoder_mask: (B, S) bool, True at real tokens; None for all.
            cache: holds keys and values after the first call; then `encoder_hidden_states` is not read.

        Returns:
            (B, T, d_model), and the weights (B, H, T, S) or None.
        """
        query_BHTK = split_heads(linear(self.q_proj, x), self.num_heads)
        key_BHSK, value_BHSK = self._keys_and_values(encoder_hidden_states, cache)
        logits = InnerLogits(query_BHTK, key_BHSK, scale=self.head_dim**-0.5)
        y = attend(logits, value_BHSK, encoder_mask, dropout_p=self.dropout if self.training else 0.0)
        weights = attention_weights(logits, encoder_mask) if need_weights else None
        return linear(self.out_proj, y.transpose(1, 2).flatten(2)), weights

    def _keys_and_values(self, states: Tensor, cache: EncoderDecoderCache | None) -> tuple[Tensor, Tensor]:
        if cache is not None and cache.is_updated.get(self.layer_idx):
            layer = cast(Any, cache.cross_attention_cache.layers[self.layer_idx])
            return layer.keys, layer.values
        key, value = (split_heads(project(states), self.num_heads) for project in (self.k_proj, self.v_proj))
        if cache is not None:
            key, value = cache.cross_attention_cache.update(key, value, self.layer_idx)
            cache.is_updated[self.layer_idx] = True
        return key, value


class SynthesizerBlock(GradientCheckpointingLayer):
    """Self-attention with synthesized weights, cross-attention if the stack attends to an encoder, feed-forward."""

    def __init__(
        self, config: SynthesizerConfig, synthesizer: str, layer_idx: int, *, is_causal: bool, has_cross_attention: bool
    ) -> None:
        super().__init__()
        self.is_causal, self.pre_norm, self.dropout = is_causal, config.pre_norm, config.dropout_rate
        self.self_attn = build(
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
        self.self_attn_norm = make_norm(config)
        self.cross_attn = CrossAttention(config, layer_idx) if has_cross_attention else None
        self.cross_attn_norm = make_norm(config) if has_cross_attention else None
        self.mlp = MLP(config)
        self.mlp_norm = make_norm(config)

    # Reentrant checkpointing finds gradients only of tensors that are passed by position.
    def forward(
        self,
        x: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attn_bias: Tensor | None = None,
        *,
        layout: TokenLayout | None = None,
        encoder_mask: Tensor | None = None,
        cache: Cache | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """One layer.

        Args:
            x, encoder_hidden_states: (B, T, d_model) and (B, S, d_model).
            attn_bias: added to the logits of self-attention; baselines have no logits and ignore it.
            encoder_mask: (B, S) bool, True at the encoder's real tokens; None if all are real.
            cache: updated by self-attention; an `EncoderDecoderCache` if there is an encoder.

        Returns:
            (B, T, d_model), and the weights of self- and cross-attention, or None.
        """
        both = cache if isinstance(cache, EncoderDecoderCache) else None
        result = self.self_attn(
            self._before(x, self.self_attn_norm),
            layout,
            None if isinstance(self.self_attn, Baseline) else attn_bias,
            self.is_causal,
            need_weights=need_weights,
            cache=cache if both is None else both.self_attention_cache,
        )
        y, weights = result if need_weights else (result, None)
        x = self._after(x, y, self.self_attn_norm)
        cross_weights: Tensor | None = None
        if self.cross_attn is not None and self.cross_attn_norm is not None:
            assert encoder_hidden_states is not None
            normed = self._before(x, self.cross_attn_norm)
            y, cross_weights = self.cross_attn(normed, encoder_hidden_states, encoder_mask, both, need_weights)
            x = self._after(x, y, self.cross_attn_norm)
        y = self.mlp(self._before(x, self.mlp_norm))
        return self._after(x, y, self.mlp_norm), weights, cross_weights

    def _before(self, x: Tensor, norm: nn.Module) -> Tensor:
        return cast(Tensor, norm(x)) if self.pre_norm else x

    def _after(self, x: Tensor, y: Tensor, norm: nn.Module) -> Tensor:
        x = add_dropout(x, y, self.dropout, self.training)
        return x if self.pre_norm else cast(Tensor, norm(x))
