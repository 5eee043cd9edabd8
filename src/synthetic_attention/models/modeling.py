"""The base model: the stacks of encoder and decoder, and the embeddings.

Shape legend: B batch, H heads, T (target) tokens, S source tokens, K width of a head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPast, Seq2SeqModelOutput
from transformers.utils.generic import can_return_tuple

from ..kernels.dropout import dropout
from ..kernels.matmul import has_other_code
from ..layout import TokenLayout, read_mask
from ..logits import Positions
from ..synthesizers import Rotary, has_logits, needs_max_length
from .blocks import SynthesizerBlock, make_embedding, make_norm
from .cache import adapt_layers
from .configuration import SynthesizerConfig
from .positions import LearnedPositions, RelativePositionBias, SinusoidalPositions, read_positions
from .pretrained import SynthesizerPreTrainedModel


class SynthesizerStack(nn.Module):
    """A stack of blocks over embeddings: the bidirectional encoder, or the causal decoder.

    A decoder attends to an encoder if the model has one.

    Attributes:
        max_length: the longest sequence; None where no part of the stack has parameters per position.
    """

    def __init__(self, config: SynthesizerConfig, side: Literal["encoder", "decoder"]) -> None:
        super().__init__()
        self.side, self.is_causal, self.dropout = side, side == "decoder", config.dropout_rate
        self.unpad_inputs = config.unpad_inputs
        self.scale = config.d_model**0.5 if config.scale_embedding else 1.0
        names = config.synthesizers(side)
        self.embed_positions: SinusoidalPositions | LearnedPositions | None = None
        self.relative_attention_bias: RelativePositionBias | None = None
        rotary: Rotary | None = None
        if config.position_embedding_type == "sinusoidal":
            self.embed_positions = SinusoidalPositions(config.d_model)
        elif config.position_embedding_type == "learned":
            self.embed_positions = LearnedPositions(config.max_position_embeddings, config.d_model)
        elif config.position_embedding_type == "rotary":
            rotary = Rotary(config, cast(int, config.d_kv))
        elif any(has_logits(name) for name in names):
            self.relative_attention_bias = RelativePositionBias(config, bidirectional=not self.is_causal)
        self.embedding_norm = make_norm(config) if config.embedding_norm else None
        attends = self.is_causal and config.is_encoder_decoder
        self.layers = nn.ModuleList(
            SynthesizerBlock(config, name, index, is_causal=self.is_causal, has_cross_attention=attends, rotary=rotary)
            for index, name in enumerate(names)
        )
        self.norm = make_norm(config) if config.pre_norm else None
        limited = config.position_embedding_type == "learned" or any(needs_max_length(name) for name in names)
        self.max_length = config.max_position_embeddings if limited else None

    def forward(
        self,
        inputs_embeds: Tensor,
        layout: TokenLayout,
        encoder_hidden_states: Tensor | None = None,
        source: TokenLayout | None = None,
        *,
        past_key_values: Cache | None = None,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
    ) -> tuple[Tensor, tuple[Tensor, ...] | None, tuple[Tensor, ...] | None, tuple[Tensor, ...] | None]:
        """Run the stack on inputs_embeds (B, T, d_model), not yet scaled, and encoder_hidden_states (B, S, d_model).

        `layout` and `source` say where their real tokens stand; `past_key_values` is that of `SynthesizerBlock`.

        Returns:
            The last hidden state, all hidden states, and the weights of self- and cross-attention, all in the slots of
            the input; None for what was not asked for.

        Raises:
            ValueError: the sequence is too long, weights of several sentences in a row are asked for, or there is a
                cache in training with gradient checkpointing.
        """
        positions = layout.positions
        self.check_length(positions.columns)
        has_padding = any(each is not None and each.real_tokens is not None for each in (layout, source))
        # Blocks may see packed tokens if no cache keeps their slots, and no weights are wanted of them.
        if has_padding and (past_key_values is not None or output_attentions or not self.leaves_out_padding):
            layout, source = layout.padded, None if source is None else source.padded
        inner, outer = layout.packed, layout
        queries = positions.queries(inputs_embeds.device)
        x = layout.pack(inputs_embeds)
        x = x * self.scale if self.scale != 1.0 else x
        if self.embed_positions is not None:
            table = self.embed_positions(queries).to(x)
            x = x + (table[inner.tokens.positions] if inner.is_packed and inner.tokens is not None else table)
        if source is not None and encoder_hidden_states is not None and source.real_tokens is not None:
            source, encoder_hidden_states = source.packed, source.pack(encoder_hidden_states)
        x = x if self.embedding_norm is None else self.embedding_norm(x).to(x.device)
        x = dropout(x, self.dropout, self.training)
        attn_bias: Tensor | None = None
        if self.relative_attention_bias is not None:
            attn_bias = self.relative_attention_bias(queries, positions.keys(x.device)).to(x)
        if output_attentions and layout.front is not None:
            # Each layer aligns for itself and returns the weights in the slots of the input, as part of the graph.
            inner, outer, x = layout, replace(layout, front=None), layout.unpack(x)
            if attn_bias is not None:
                attn_bias = layout.restore_pairs(attn_bias.expand(layout.shape[0], -1, -1, -1))
        states, weights, cross_weights = [], [], []
        blocks: Any = self.layers
        # transformers would pass no cache to the blocks, but the layout counts its tokens.
        if past_key_values is not None and self.training and any(block.gradient_checkpointing for block in blocks):
            raise ValueError("got a cache in training with gradient checkpointing; expected use_cache=False")
        for block in blocks:
            if output_hidden_states:
                states.append(outer.unpack(x.to(inputs_embeds.device)))
                x = outer.pack(states[-1])
            x, own, cross = block(
                x,
                encoder_hidden_states,
                attn_bias,
                layout=inner,
                source=source,
                past_key_values=past_key_values,
                need_weights=output_attentions,
            )
            if output_attentions:
                weights.append(own)
            if cross is not None:
                cross_weights.append(cross)
        # A `device_map` can place modules on several devices; the layout is on the input's.
        x = outer.unpack((x if self.norm is None else self.norm(x)).to(inputs_embeds.device))
        return x, (*states, x) if output_hidden_states else None, tuple(weights) or None, tuple(cross_weights) or None

    @property
    def leaves_out_padding(self) -> bool:
        """Whether `unpad_inputs` allows it, and nothing in the stack may look at rows.

        Compiled parts get rows: they would be compiled again for each number of tokens.
        """
        return self.unpad_inputs and not has_other_code(self)

    def extend(self, max_length: int) -> None:
        """Change the maximum length of its layers and positions in place."""
        blocks: Any = self.layers
        for block in blocks:
            block.self_attn.extend(max_length)
        if isinstance(self.embed_positions, LearnedPositions):
            self.embed_positions.extend(max_length)
        self.max_length = None if self.max_length is None else max_length

    def check_length(self, length: int) -> None:
        """Raise ValueError if a sequence of `length` slots is too long."""
        if self.max_length is not None and length > self.max_length:
            raise ValueError(
                f"got a sequence of {length} slots in the {self.side}; expected at most max_position_embeddings = "
                f"{self.max_length}. Truncate or split the input, generate fewer new tokens, or build the model with a "
                "larger max_position_embeddings"
            )


class SynthesizerModel(SynthesizerPreTrainedModel):
    """The Synthesizer without a head: an encoder and a decoder, or one stack.

    With `is_encoder_decoder` it has both. Otherwise it has one stack: a causal `decoder` if the configuration says
    `is_decoder`, else a bidirectional `encoder`.
    """

    def __init__(self, config: SynthesizerConfig) -> None:
        if not config.is_encoder_decoder and config.is_decoder is None:
            config = config.with_one_stack()
        super().__init__(config)
        both = config.is_encoder_decoder
        self.encoder = SynthesizerStack(config, "encoder") if both or not config.is_decoder else None
        self.embed_tokens = make_embedding(config.vocab_size, config)
        has_types = config.type_vocab_size and not both
        self.token_types = make_embedding(config.type_vocab_size, config) if has_types else None
        self.decoder = SynthesizerStack(config, "decoder") if both or config.is_decoder else None
        self.post_init()

    def get_encoder(self, modality: str | None = None) -> nn.Module:
        """The encoder with the input embedding, callable with `input_ids`; of a model with one stack the model."""
        return _Encoder(self) if self.config.is_encoder_decoder else self

    def get_decoder(self) -> nn.Module:
        """The decoder; of a model with one stack the model."""
        return self.decoder if self.decoder is not None and self.encoder is not None else self

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Tensor, ...] | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        segment_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutputWithPast | Seq2SeqModelOutput:
        """Compute hidden states.

        Args:
            input_ids: (B, S); or `inputs_embeds` (B, S, d_model).
            attention_mask: (B, S), 1 at real tokens, padded on any side; by default all are. With a cache of a causal
                stack it covers the cached tokens too.
            decoder_input_ids: (B, T), the decoder's input; or `decoder_inputs_embeds`.
            decoder_attention_mask: (B, past + T), 1 at real tokens of the decoder; by default all are.
            encoder_outputs: the encoder's output, instead of the source.
            past_key_values: a cache with earlier tokens.
            token_type_ids: (B, S), by default zeros. Read by models with one stack and a `type_vocab_size`.
            segment_ids: (B, S), instead of a mask, for rows that hold several sentences (one stack only): 0 at padding,
                and for each sentence a number other than its neighbours'. Sentences do not see each other.
            position_ids: (B or 1, S), one stack only: the positions that the mask says, or, as in flattened batches,
                positions that begin again with 0 at each sequence, which act as `segment_ids`. Not read if these are
                given, nor when a model is exported.
            use_cache: return a cache; by default as the configuration says, in inference without labels.
            output_attentions, output_hidden_states: return them, in the slots of the input.

        Returns:
            A `Seq2SeqModelOutput`; from one stack its last hidden state (B, S, d_model), cache, states and weights.

        Raises:
            ValueError: a sequence that is too long, a mask or positions that do not fit, inputs missing or twice, or
                inputs that another kind of model has.
        """
        is_seq2seq, mask = self.config.is_encoder_decoder, attention_mask
        record = self.recorded({"output_attentions": output_attentions, "output_hidden_states": output_hidden_states})
        encoded: Any = None
        source: TokenLayout | None = None
        if is_seq2seq:
            unused = {"position_ids": position_ids, "token_type_ids": token_type_ids}
            _refuse("an encoder-decoder", segment_ids=segment_ids, **unused)
            encoded, source = self._encode(input_ids, mask, inputs_embeds, encoder_outputs, record)
            input_ids, mask, inputs_embeds = decoder_input_ids, decoder_attention_mask, decoder_inputs_embeds
        else:
            unused = {"decoder_input_ids": decoder_input_ids, "decoder_inputs_embeds": decoder_inputs_embeds}
            _refuse("a model with one stack", encoder_outputs=encoder_outputs, **unused)
        embeds = self._embed(input_ids, inputs_embeds, token_type_ids, "decoder_" if is_seq2seq else "")
        if segment_ids is None:
            segment_ids, mask = read_positions(position_ids, embeds, mask, past_key_values)
        if segment_ids is not None:
            given = {"past_key_values": past_key_values, "use_cache=True": use_cache or None}
            _refuse("rows with several sentences", attention_mask=mask, **given)
            if segment_ids.shape != embeds.shape[:2]:
                shape = tuple(segment_ids.shape)
                raise ValueError(f"got segment_ids of shape {shape}; expected (B, T) = {tuple(embeds.shape[:2])}")
        cache = self._cache(past_key_values, use_cache if segment_ids is None else False)
        own = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
        if own is not None:
            adapt_layers(own, self.config.layer_types)
        layout = TokenLayout.of(mask if segment_ids is None else TokenLayout.of_segments(segment_ids), embeds, own)
        stack: Any = self.encoder if self.decoder is None else self.decoder
        hidden = encoded.last_hidden_state if is_seq2seq else None
        x, states, weights, cross_weights = stack(embeds, layout, hidden, source, past_key_values=cache, **record)
        if not is_seq2seq:
            return BaseModelOutputWithPast(x, cache, states, weights)
        return Seq2SeqModelOutput(
            last_hidden_state=x,
            past_key_values=cache,  # type: ignore[arg-type]
            decoder_hidden_states=states,
            decoder_attentions=weights,
            cross_attentions=cross_weights,
            encoder_last_hidden_state=hidden,
            encoder_hidden_states=encoded.hidden_states,
            encoder_attentions=encoded.attentions,
        )

    def recorded(self, asked: Mapping[str, Any]) -> dict[str, bool]:
        """What a stack has to record: as an argument of `forward` says, or the configuration where it is None."""
        names = ("output_attentions", "output_hidden_states")
        return {name: bool(getattr(self.config, name) if asked.get(name) is None else asked[name]) for name in names}

    def _encode(
        self,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        inputs_embeds: Tensor | None,
        outputs: BaseModelOutput | tuple[Tensor, ...] | None,
        record: dict[str, bool],
    ) -> tuple[BaseModelOutput, TokenLayout]:
        """The encoder's output, computed unless it is given, and the layout of the source."""
        if isinstance(outputs, tuple):
            outputs = BaseModelOutput(*outputs)  # type: ignore[arg-type]
        x: Any = self._embed(input_ids, inputs_embeds) if outputs is None else outputs.last_hidden_state
        if outputs is not None:
            # Usually a decoding step, for which the mask is enough.
            mask = None if attention_mask is None else read_mask(attention_mask, *x.shape[:2])[0]
            return outputs, TokenLayout(x.shape[:2], x.shape[1], Positions(x.shape[1], x.shape[1]), mask)
        layout = TokenLayout.of(attention_mask, x)
        assert self.encoder is not None
        return BaseModelOutput(*self.encoder(x, layout, **record)[:3]), layout

    def _embed(
        self, input_ids: Tensor | None, embeds: Tensor | None, types: Tensor | None = None, prefix: str = ""
    ) -> Tensor:
        if (input_ids is None) == (embeds is None):
            names = f"{prefix}input_ids and {prefix}inputs_embeds"
            raise ValueError(f"got both or neither of {names}; expected one of the two")
        x = cast(Tensor, embeds) if input_ids is None else self.embed_tokens(input_ids).to(input_ids.device)
        if self.token_types is None:
            return x
        return x + self.token_types(torch.zeros_like(x[..., 0], dtype=torch.long) if types is None else types).to(x)

    def _cache(self, given: Cache | None, use_cache: bool | None) -> Cache | None:
        """The cache to read and fill: the given one, or a new one if it is wanted."""
        if self.decoder is None:
            _refuse("a bidirectional model", past_key_values=given)
            return None
        both = self.encoder is not None
        if given is None:
            by_default = self.config.use_cache and not self.training and not torch.compiler.is_exporting()
            if not (by_default if use_cache is None else use_cache):
                return None
            given = DynamicCache(config=self.config)
            given = EncoderDecoderCache(given, DynamicCache(config=self.config)) if both else given
        if isinstance(given, EncoderDecoderCache) != both:
            expected = "an EncoderDecoderCache" if both else "a decoder's, without cross-attention"
            raise ValueError(f"got past_key_values of type {type(given).__name__}; expected {expected}")
        return given


def _refuse(where: str, **inputs: object) -> None:
    if given := [name for name, value in inputs.items() if value is not None]:
        raise ValueError(f"got {' and '.join(given)} for {where}; expected no such input")


class _Encoder(nn.Module):
    """The encoder of an encoder-decoder with its embedding, as `generate()` calls it."""

    main_input_name = "input_ids"
    token_types = None
    # Not the model itself: the decoder's parameters and training mode are not the encoder's.
    recorded, _encode, _embed = SynthesizerModel.recorded, SynthesizerModel._encode, SynthesizerModel._embed

    def __init__(self, model: SynthesizerModel) -> None:
        super().__init__()
        self.embed_tokens, self.encoder, self.config = model.embed_tokens, model.encoder, model.config
        self.training = cast(SynthesizerStack, model.encoder).training

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutput:
        """Encode input_ids (B, S), or inputs_embeds (B, S, d_model) instead."""
        record = {"output_attentions": output_attentions, "output_hidden_states": output_hidden_states}
        return self._encode(input_ids, attention_mask, inputs_embeds, None, self.recorded(record))[0]  # type: ignore[misc]
