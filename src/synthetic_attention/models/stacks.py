"""The encoder and the decoder: positions, blocks, padding and cache, without embeddings of the decoder and heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import Cache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from ..attention import KeyValueCache
from ..masks import Padding
from ..self_attention import has_logits, needs_max_length
from .blocks import SynthesizerBlock, make_embedding, make_norm
from .cache import FilledSlots, StaticSlots
from .configuration import SynthesizerConfig
from .dropout import dropout
from .positions import LearnedPositions, RelativePositionBias, SinusoidalPositions
from .sentences import PackedSentences

__all__ = ["StackOutput", "SynthesizerEncoder", "SynthesizerStack", "read_padding"]


@dataclass
class StackOutput:
    """What a stack returns, in the slots of its input.

    Attributes:
        last_hidden_state: (B, T, d_model).
        hidden_states: the input of the first layer, then the output of each (the last one normalised), or None.
        attentions: the self-attention weights (B, H, T, S) of each layer, or None.
        cross_attentions: likewise.
    """

    last_hidden_state: Tensor
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    cross_attentions: tuple[Tensor, ...] | None = None

    def restored(self, layout: Padding | PackedSentences) -> StackOutput:
        """The same of a batch that was aligned, moved back to the slots of the input (no weights of packed ones)."""
        states, weights, cross = self.hidden_states, self.attentions, self.cross_attentions
        moved = StackOutput(
            layout.restore(self.last_hidden_state),
            None if states is None else tuple(layout.restore(state) for state in states),
        )
        if isinstance(layout, Padding):
            if weights is not None:
                moved.attentions = tuple(layout.restore(layout.restore(w, dim=2), dim=3) for w in weights)
            if cross is not None:
                moved.cross_attentions = tuple(layout.restore(w, dim=2) for w in cross)
        return moved


def read_padding(mask: Tensor | Padding | None, batch: int, length: int) -> Padding | None:
    """The padding of a batch; None where no token is known to be masked.

    Raises:
        ValueError: the mask is not (batch, length).
    """
    if isinstance(mask, Tensor):
        mask = Padding.from_mask(mask, batch=batch, length=length)
    return None if mask is None or mask.full else mask


class SynthesizerStack(nn.Module):
    """A stack of blocks over embeddings.

    Args:
        config: the model's.
        side: whose synthesizers and number of layers to take.
        is_causal: a token sees itself and those before it.
        cross_attention: whether the blocks attend to an encoder.

    Attributes:
        max_length: the longest sequence; None where nothing in the stack has a parameter per position.
    """

    def __init__(
        self, config: SynthesizerConfig, side: Literal["encoder", "decoder"], *, is_causal: bool, cross_attention: bool
    ) -> None:
        super().__init__()
        self.config, self.side = config, side
        self.scale = config.d_model**0.5 if config.scale_embedding else 1.0
        self.positions: nn.Module | None = None
        self.relative_bias: RelativePositionBias | None = None
        if config.position_embedding_type == "sinusoidal":
            self.positions = SinusoidalPositions(config.d_model)
        elif config.position_embedding_type == "learned":
            self.positions = LearnedPositions(config.max_position_embeddings, config.d_model)
        elif any(has_logits(name) for name in config.synthesizers(side)):
            self.relative_bias = RelativePositionBias(
                config.num_heads,
                config.relative_attention_num_buckets,
                config.relative_attention_max_distance,
                bidirectional=not is_causal,
                std=config.initializer_factor * config.d_model**-0.5,
            )
        self.layers = nn.ModuleList(
            SynthesizerBlock(config, name, index, is_causal=is_causal, cross_attention=cross_attention)
            for index, name in enumerate(config.synthesizers(side))
        )
        self.final_norm = make_norm(config) if config.pre_norm else None
        limited = config.position_embedding_type == "learned"
        limited = limited or any(needs_max_length(name) for name in config.synthesizers(side))
        self.max_length = config.max_position_embeddings if limited else None

    def forward(
        self,
        inputs_embeds: Tensor,
        attention_mask: Tensor | Padding | None = None,
        *,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        need_weights: bool = False,
        keep_states: bool = False,
    ) -> StackOutput:
        """Run the stack.

        Args:
            inputs_embeds: (B, T, d_model), not yet scaled.
            attention_mask: (B, S), 1/True at real tokens; S counts the slots in the cache too (those of a cache of
                fixed size all, or only the filled ones; in compiled code all).
            memory: (B, M, d_model), the encoder's output.
            memory_mask: (B, M) bool; None where all tokens are real.
            past_key_values: the cache; an `EncoderDecoderCache` where there is an encoder.
            need_weights: return attention weights.
            keep_states: return the hidden states between layers.

        Raises:
            ValueError: a sequence that is too long, or a mask that does not fit.
        """
        batch, new = inputs_embeds.shape[:2]
        both = past_key_values if isinstance(past_key_values, EncoderDecoderCache) else None
        own = past_key_values if both is None else both.self_attention_cache
        slots, columns, cache = _open_cache(own, new, inputs_embeds.device)
        self.check_length(columns)
        self._check_cache(own)
        if isinstance(attention_mask, Tensor) and own is not None and own.is_compileable:
            attention_mask = attention_mask[:, :columns]
        outer = read_padding(attention_mask, batch, columns)
        # Without a cache the whole batch is aligned once, so that no layer has to; a cache keeps its slots.
        align = outer if own is None else None
        padding = outer if align is None else align.aligned
        if align is not None:
            inputs_embeds = align.align(inputs_embeds)
        x, attn_bias = self._position(inputs_embeds, slots, columns, padding if align is None else None)

        states, weights, cross_weights = [x] if keep_states else [], [], []
        for block in self.layers:
            x, block_weights, block_cross_weights = block(
                x,
                memory,
                attn_bias,
                padding=padding,
                memory_mask=memory_mask,
                self_attention_cache=cache,
                cross_attention_cache=both,
                need_weights=need_weights,
            )
            if keep_states:
                states.append(x)
            weights.append(block_weights)
            cross_weights.append(block_cross_weights)
        if self.final_norm is not None:
            x = self.final_norm(x)
        if keep_states:
            states[-1] = x
        output = StackOutput(
            x,
            tuple(states) if keep_states else None,
            tuple(weights) if need_weights else None,
            tuple(cross_weights) if need_weights and memory is not None else None,
        )
        return output if align is None else output.restored(align)

    def _position(
        self, embeds: Tensor, slots: slice | Tensor, columns: int, padding: Padding | None
    ) -> tuple[Tensor, Tensor | None]:
        """Embeddings, which stand at `slots`, with their positions, and the bias of relative ones on the logits."""
        keys = torch.arange(columns, device=embeds.device) if padding is None else padding.positions
        queries = keys[..., slots]
        x = embeds * self.scale if self.scale != 1.0 else embeds
        if self.positions is not None:
            x = x + self.positions(queries, x.dtype)
        x = dropout(x, self.config.dropout_rate, self.training)
        return x, None if self.relative_bias is None else self.relative_bias(queries, keys).to(x.dtype)

    def check_length(self, length: int) -> None:
        """Check the length of a sequence, in slots.

        Raises:
            ValueError: it is over the maximum.
        """
        if self.max_length is not None and length > self.max_length:
            raise ValueError(
                f"got a sequence of {length} slots in the {self.side}; expected at most max_position_embeddings = "
                f"{self.max_length}. Truncate or split the input, generate fewer new tokens, or build the model with a "
                "larger max_position_embeddings"
            )

    def _check_cache(self, cache: Cache | None) -> None:
        if cache is not None and self.training and any(block.gradient_checkpointing for block in self.layers):
            raise ValueError(
                "got a cache in training with gradient checkpointing, which would fill it twice; expected "
                "use_cache=False and no past_key_values"
            )


def _open_cache(
    cache: Cache | None, new: int, device: torch.device
) -> tuple[slice | Tensor, int, KeyValueCache | None]:
    """Where `new` tokens will stand, how many slots there will be to attend to, and the cache as layers see it."""
    if cache is None:
        return slice(0, None), new, None
    past = cache.get_seq_length()
    if isinstance(past, Tensor) and torch.compiler.is_compiling():
        slots = torch.arange(new, device=device) + past
        return slots, cache.get_max_length(), StaticSlots(cache, slots)
    past = int(past)
    # Elsewhere a cache of fixed size is seen as far as it is filled.
    seen = FilledSlots(cache, past + new) if cache.is_compileable else cache
    return slice(past, None), past + new, seen


class SynthesizerEncoder(SynthesizerStack):
    """The encoder with the input embedding, which the decoder shares."""

    main_input_name = "input_ids"

    def __init__(self, config: SynthesizerConfig) -> None:
        super().__init__(config, "encoder", is_causal=False, cross_attention=False)
        self.embed_tokens = make_embedding(config)

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | Padding | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> BaseModelOutput | tuple[Tensor, ...]:
        """Encode input_ids (B, S), or inputs_embeds (B, S, d_model) in their place.

        Raises:
            ValueError: both or neither of them, a sequence that is too long, or a mask that does not fit.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("got both or neither of input_ids and inputs_embeds; expected one of the two")
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        output = super().forward(
            inputs_embeds,
            attention_mask,
            need_weights=bool(output_attentions),
            keep_states=bool(output_hidden_states),
        )
        result = BaseModelOutput(
            last_hidden_state=output.last_hidden_state,
            hidden_states=output.hidden_states,
            attentions=output.attentions,
        )
        return result if return_dict in (None, True) else result.to_tuple()
