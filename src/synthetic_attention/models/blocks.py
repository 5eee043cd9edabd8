"""Parts of the stacks: norms, embeddings, the feed-forward layer, cross-attention, and the block of all.

Shape legend: B batch, H heads, T (target) tokens, S source tokens, K width of a head.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import Cache, EncoderDecoderCache
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from ..attention import build
from ..baselines import Baseline
from ..kernels import attend, attention_weights, join_heads, linear, split_heads, sum_values
from ..kernels.dropout import add_dropout
from ..layout import TokenLayout
from ..logits import InnerLogits
from ..synthesizers import Rotary
from .configuration import SynthesizerConfig
from .pretrained import init_linears


def make_norm(config: SynthesizerConfig) -> nn.Module:
    """The configured norm over d_model."""
    if config.norm_type == "rms_norm":
        return nn.RMSNorm(config.d_model, eps=config.layer_norm_epsilon)
    return nn.LayerNorm(config.d_model, eps=config.layer_norm_epsilon, bias=config.use_bias)


def make_embedding(rows: int, config: SynthesizerConfig) -> nn.Embedding:
    """An embedding of d_model features, initialised as T5's."""
    embedding = nn.Embedding(rows, config.d_model)
    nn.init.normal_(embedding.weight, std=config.embedding_std)
    return embedding


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
        init_linears(self, config.initializer_factor)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, d_model) to the same shape."""
        if self.gate_proj is None:
            return linear(self.down_proj, self.activation(linear(self.up_proj, x)))
        return linear(self.down_proj, self.activation(linear(self.gate_proj, x)) * linear(self.up_proj, x))


class CrossAttention(nn.Module):
    """Dot-product attention from the decoder to the encoder's output, the same in every variant of the paper."""

    def __init__(self, config: SynthesizerConfig, layer_idx: int) -> None:
        super().__init__()
        assert config.d_kv is not None
        self.num_heads, self.head_dim, self.layer_idx = config.num_heads, config.d_kv, layer_idx
        self.dropout = config.attention_dropout_rate
        inner = self.num_heads * self.head_dim
        self.q_proj = nn.Linear(config.d_model, inner, bias=config.use_bias)
        self.k_proj = nn.Linear(config.d_model, inner, bias=config.use_bias)
        self.v_proj = nn.Linear(config.d_model, inner, bias=config.use_bias)
        self.out_proj = nn.Linear(inner, config.d_model, bias=config.use_bias)
        init_linears(self, config.initializer_factor)

    def forward(
        self,
        x: Tensor,
        encoder_hidden_states: Tensor,
        layout: TokenLayout,
        source: TokenLayout,
        cache: EncoderDecoderCache | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from x (B, T, d_model) to encoder_hidden_states (B, S, d_model), or packed ones.

        After the first call a cache holds keys and values, and `encoder_hidden_states` is not read.

        Returns:
            The shape of x, and the weights (B, H, T, S) or None.
        """
        query_BHTK = split_heads(layout.pad(linear(self.q_proj, x)), self.num_heads)
        if cache is not None and cache.is_updated.get(self.layer_idx):
            layer: Any = cache.cross_attention_cache.layers[self.layer_idx]
            key_BHSK, value_BHSK = layer.keys, layer.values
        else:
            key_BHSK = split_heads(source.pad(linear(self.k_proj, encoder_hidden_states)), self.num_heads)
            value_BHSK = split_heads(source.pad(linear(self.v_proj, encoder_hidden_states)), self.num_heads)
            if cache is not None:
                key_BHSK, value_BHSK = cache.cross_attention_cache.update(key_BHSK, value_BHSK, self.layer_idx)
                cache.is_updated[self.layer_idx] = True
        logits, dropout_p = InnerLogits(query_BHTK, key_BHSK, scale=self.head_dim**-0.5), self.dropout * self.training
        weights = attention_weights(logits, source.mask).to(value_BHSK.dtype) if need_weights else None
        if weights is None:
            y = attend(logits, value_BHSK, source.mask, dropout_p=dropout_p)
        else:
            y = sum_values(logits, weights, value_BHSK, dropout_p)
        return linear(self.out_proj, join_heads(y, layout)), weights


class SynthesizerBlock(GradientCheckpointingLayer):
    """Self-attention with synthesized weights, cross-attention if the stack attends to an encoder, feed-forward."""

    def __init__(
        self,
        config: SynthesizerConfig,
        synthesizer: str,
        layer_idx: int,
        *,
        is_causal: bool,
        has_cross_attention: bool,
        rotary: Rotary | None = None,
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
            num_key_value_heads=config.num_key_value_heads,
            qk_norm=config.layer_norm_epsilon if config.qk_norm else None,
            rotary=rotary,
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
        layout: TokenLayout,
        source: TokenLayout | None = None,
        past_key_values: Cache | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """x (B, T, d_model) to the same shape, and the weights of self- and cross-attention, or None.

        Args:
            attn_bias: added to the logits of self-attention; baselines have no logits and ignore it.
            layout, source: those of x and of `encoder_hidden_states` (B, S, d_model); both may be packed.
            past_key_values: updated by self-attention; an `EncoderDecoderCache` if there is an encoder.
        """
        both = past_key_values if isinstance(past_key_values, EncoderDecoderCache) else None
        cache = past_key_values if both is None else both.self_attention_cache
        norm: Any = self.self_attn_norm
        attention = self.self_attn
        bias = None if isinstance(attention, Baseline) else attn_bias
        y = norm(x) if self.pre_norm else x
        y = attention(y, layout, bias, self.is_causal, need_weights=need_weights, cache=cache)
        y, weights = y if need_weights else (y, None)
        x = self._add(x, y, norm)
        cross_weights: Tensor | None = None
        if self.cross_attn is not None:
            norm = self.cross_attn_norm
            y = norm(x) if self.pre_norm else x
            y, cross_weights = self.cross_attn(y, encoder_hidden_states, layout, source, both, need_weights)
            x = self._add(x, y, norm)
        norm = self.mlp_norm
        return self._add(x, self.mlp(norm(x) if self.pre_norm else x), norm), weights, cross_weights

    def _add(self, x: Tensor, y: Tensor, norm: nn.Module) -> Tensor:
        x = add_dropout(x, y, self.dropout, self.training)
        return x if self.pre_norm else norm(x)
