"""The base model: embeddings, and stacks of blocks for encoder and decoder.

Shape legend: B batch, T (target) tokens, S source tokens.
"""

from __future__ import annotations

from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Cache, DynamicCache, EncoderDecoderCache, PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqModelOutput,
)
from transformers.utils.generic import can_return_tuple

from ..kernels.dropout import dropout
from ..layout import Positions, TokenLayout
from ..synthesizers import has_logits, needs_max_length
from .blocks import SynthesizerBlock, init_linear, make_embedding, make_norm
from .cache import check_layers
from .configuration import SynthesizerConfig
from .positions import LearnedPositions, RelativePositionBias, SinusoidalPositions

__all__ = ["SynthesizerModel", "SynthesizerPreTrainedModel", "SynthesizerStack"]


class SynthesizerStack(nn.Module):
    """A stack of blocks over embeddings: the bidirectional encoder, or the causal decoder.

    A decoder attends to an encoder if the model has one.

    Attributes:
        max_length: the longest sequence; None where no part of the stack has parameters per position.
    """

    def __init__(self, config: SynthesizerConfig, side: Literal["encoder", "decoder"]) -> None:
        super().__init__()
        self.config, self.side, self.is_causal = config, side, side == "decoder"
        self.scale = config.d_model**0.5 if config.scale_embedding else 1.0
        names = config.synthesizers(side)
        self.embed_positions: SinusoidalPositions | LearnedPositions | None = None
        self.relative_attention_bias: RelativePositionBias | None = None
        if config.position_embedding_type == "sinusoidal":
            self.embed_positions = SinusoidalPositions(config.d_model)
        elif config.position_embedding_type == "learned":
            self.embed_positions = LearnedPositions(config.max_position_embeddings, config.d_model)
        elif any(has_logits(name) for name in names):
            self.relative_attention_bias = RelativePositionBias(
                config.num_heads,
                config.relative_attention_num_buckets,
                config.relative_attention_max_distance,
                bidirectional=not self.is_causal,
                std=config.initializer_factor * config.d_model**-0.5,
            )
        attends = self.is_causal and config.is_encoder_decoder
        self.layers = nn.ModuleList(
            SynthesizerBlock(config, name, index, is_causal=self.is_causal, has_cross_attention=attends)
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
        encoder_mask: Tensor | None = None,
        *,
        past_key_values: Cache | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Run the stack.

        Args:
            inputs_embeds: (B, T, d_model), not yet scaled.
            layout: where the real tokens stand, those in the cache included.
            encoder_hidden_states: (B, S, d_model).
            encoder_mask: (B, S) bool, True at the encoder's real tokens; None if all are real.
            past_key_values: the cache to update; an `EncoderDecoderCache` if there is an encoder.

        Returns:
            Hidden states and weights in the slots of the input.

        Raises:
            ValueError: the sequence is too long, or the arguments exclude each other.
        """
        config, positions = self.config, layout.positions
        need_weights = bool(config.output_attentions if output_attentions is None else output_attentions)
        keep_states = bool(config.output_hidden_states if output_hidden_states is None else output_hidden_states)
        self.check_length(positions.columns)
        self._check_call(layout, past_key_values, need_weights)
        x, attn_bias = self._embed(layout.align(inputs_embeds), positions)
        states, weights, cross_weights = [], [], []
        for block in self.layers:
            if keep_states:
                states.append(layout.restore(x))
            x, *block_weights = block(
                x,
                encoder_hidden_states,
                attn_bias,
                layout=layout.aligned,
                encoder_mask=encoder_mask,
                cache=past_key_values,
                need_weights=need_weights,
            )
            if need_weights:
                weights.append(layout.restore_pairs(block_weights[0]))
            if need_weights and encoder_hidden_states is not None:
                cross_weights.append(layout.restore(block_weights[1], dim=2))
        x = layout.restore(x if self.norm is None else self.norm(x))
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=cast(Any, x),
            past_key_values=past_key_values,
            hidden_states=cast(Any, (*states, x)) if keep_states else None,
            attentions=cast(Any, tuple(weights)) if need_weights else None,
            cross_attentions=cast(Any, tuple(cross_weights)) if cross_weights else None,
        )

    def _embed(self, x: Tensor, positions: Positions) -> tuple[Tensor, Tensor | None]:
        """Scaled embeddings with positions, and the bias of relative positions on the attention logits."""
        queries = positions.queries(x.device)
        x = x * self.scale if self.scale != 1.0 else x
        if self.embed_positions is not None:
            x = x + self.embed_positions(queries, x.dtype)
        x = dropout(x, self.config.dropout_rate, self.training)
        if self.relative_attention_bias is None:
            return x, None
        return x, self.relative_attention_bias(queries, positions.keys(x.device)).to(x.dtype)

    def check_length(self, length: int) -> None:
        """Raise ValueError if a sequence of `length` slots is too long."""
        if self.max_length is not None and length > self.max_length:
            raise ValueError(
                f"got a sequence of {length} slots in the {self.side}; expected at most max_position_embeddings = "
                f"{self.max_length}. Truncate or split the input, generate fewer new tokens, or build the model with a "
                "larger max_position_embeddings"
            )

    def _check_call(self, layout: TokenLayout, cache: Cache | None, need_weights: bool) -> None:
        if need_weights and layout.sentences is not None:
            raise ValueError("got output_attentions with segment_ids; expected one sentence per row to return weights")
        if cache is not None and self.training and any(block.gradient_checkpointing for block in self.layers):
            raise ValueError("got a cache in training with gradient checkpointing; expected use_cache=False")


class SynthesizerPreTrainedModel(PreTrainedModel):
    """Base class of all Synthesizer models: configuration class, initialisation, features that transformers uses."""

    config_class = SynthesizerConfig
    config: SynthesizerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["SynthesizerBlock"]  # noqa: RUF012
    _supports_sdpa = True
    _can_compile_fullgraph = True
    # Losses divide by `num_items_in_batch`: gradient accumulation equals one large batch.
    accepts_loss_kwargs = True

    def init_weights(self) -> None:
        """Tie the weights. Constructors have initialised all modules already."""
        self.tie_weights(recompute_mapping=False)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise a module that is missing in the checkpoint, or new (a larger embedding)."""
        # Parents come after their children and replace what is theirs, as SynthesizerAttention does.
        if isinstance(module, nn.Linear) and module is not getattr(self, "lm_head", None):
            init_linear(module, self.config.initializer_factor)
        elif type(module) in (nn.Embedding, nn.Linear):
            nn.init.normal_(cast(Tensor, module.weight), std=self.config.initializer_factor * self.config.d_model**-0.5)
        elif callable(reset := getattr(module, "reset_parameters", None)):
            reset()

    def uses_fused_loss(self, labels: Tensor | None) -> bool:
        """Whether a language model computes its loss without storing the logits."""
        return labels is not None and self.training and self.config.fused_loss

    @staticmethod
    def create_masks_for_generate(
        *, attention_mask: Tensor | None = None, past_key_values: Cache, **unused: Any
    ) -> Tensor | None:
        """The mask that `generate()` prepares for a static cache: for all its slots, so that no step has another shape.

        None if no token is masked: the rows share their positions then, which makes shared logits fast.
        """
        if attention_mask is None or bool(attention_mask.all()):
            return None
        missing = past_key_values.get_max_length() - attention_mask.shape[1]
        return F.pad(attention_mask, (0, missing)) if missing > 0 else attention_mask


class SynthesizerModel(SynthesizerPreTrainedModel):
    """The Synthesizer without a head: an encoder and a decoder, or one stack.

    With `is_encoder_decoder` it has both. Otherwise it has one stack: a causal `decoder` if the configuration says
    `is_decoder`, else a bidirectional `encoder`.
    """

    def __init__(self, config: SynthesizerConfig) -> None:
        if not config.is_encoder_decoder and config.is_decoder is None:
            config = config.with_one_stack(is_decoder=False)
        super().__init__(config)
        if not config.is_decoder:
            self.encoder = SynthesizerStack(config, "encoder")
        self.embed_tokens = make_embedding(config.vocab_size, config)
        if config.type_vocab_size and not config.is_encoder_decoder:
            self.token_types = make_embedding(config.type_vocab_size, config)
        if config.is_encoder_decoder or config.is_decoder:
            self.decoder = SynthesizerStack(config, "decoder")
        self.post_init()

    def get_encoder(self, modality: str | None = None) -> nn.Module:
        """The encoder with the input embedding, callable with `input_ids`; of a model with one stack the model."""
        return _Encoder(self) if self.config.is_encoder_decoder else self

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
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutput | Seq2SeqModelOutput:
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
            use_cache: return a cache; by default as the configuration says, in inference without labels.
            output_attentions, output_hidden_states: return them, in the slots of the input.

        Returns:
            A `Seq2SeqModelOutput`; from one stack its last hidden state (B, S, d_model), cache, states and weights.

        Raises:
            ValueError: a sequence that is too long, a mask that does not fit, inputs missing or twice, or segments or
                token types in an encoder-decoder.
        """
        record = {"output_attentions": output_attentions, "output_hidden_states": output_hidden_states}
        if not self.config.is_encoder_decoder:
            if any(x is not None for x in (decoder_input_ids, decoder_inputs_embeds, encoder_outputs)):
                raise ValueError("got inputs of an encoder-decoder in a model with one stack; expected input_ids")
            embeds = self._embed(input_ids, inputs_embeds, token_type_ids)
            cache = self._cache(past_key_values, use_cache if segment_ids is None else bool(use_cache))
            layout = _layout(embeds, attention_mask, segment_ids, cache)
            stack = self.decoder if self.config.is_decoder else self.encoder
            return cast(BaseModelOutput, stack(embeds, layout, past_key_values=cache, **record))
        ignored = {"segment_ids": segment_ids, "token_type_ids": token_type_ids}
        if given := [name for name, x in ignored.items() if x is not None]:
            raise ValueError(
                f"got {' and '.join(given)} in an encoder-decoder; expected them in a model with one stack"
            )
        encoded, source = self._encode(input_ids, attention_mask, inputs_embeds, encoder_outputs, record)
        if (decoder_input_ids is None) == (decoder_inputs_embeds is None):
            raise ValueError(
                "got both or neither of decoder_input_ids and decoder_inputs_embeds; expected one of the two, or labels"
            )
        embeds = self._embed(decoder_input_ids, decoder_inputs_embeds)
        cache = self._cache(past_key_values, use_cache)
        layout = TokenLayout.of(decoder_attention_mask, embeds, _of_self_attention(cache))
        decoded = self.decoder(embeds, layout, encoded.last_hidden_state, source.mask, past_key_values=cache, **record)
        return Seq2SeqModelOutput(
            last_hidden_state=decoded.last_hidden_state,
            past_key_values=cast(Any, cache),
            decoder_hidden_states=decoded.hidden_states,
            decoder_attentions=decoded.attentions,
            cross_attentions=decoded.cross_attentions,
            encoder_last_hidden_state=encoded.last_hidden_state,
            encoder_hidden_states=encoded.hidden_states,
            encoder_attentions=encoded.attentions,
        )

    def _encode(
        self,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        inputs_embeds: Tensor | None,
        outputs: BaseModelOutput | tuple[Tensor, ...] | None,
        record: dict[str, Any],
    ) -> tuple[BaseModelOutput, TokenLayout]:
        """The encoder's output, computed unless it is given, and the layout of the source."""
        if outputs is None:
            embeds = self._embed(input_ids, inputs_embeds)
            layout = TokenLayout.of(attention_mask, embeds)
            return cast(BaseModelOutput, self.encoder(embeds, layout, **record)), layout
        outputs = BaseModelOutput(*cast(Any, outputs)) if isinstance(outputs, tuple) else outputs
        return outputs, TokenLayout.of(attention_mask, cast(Tensor, outputs.last_hidden_state))

    def _embed(self, input_ids: Tensor | None, embeds: Tensor | None, types: Tensor | None = None) -> Tensor:
        if (input_ids is None) == (embeds is None):
            raise ValueError("got both or neither of input_ids and inputs_embeds; expected one of the two")
        embeds = cast(Tensor, self.embed_tokens(input_ids)) if embeds is None else embeds
        if not hasattr(self, "token_types"):
            return embeds
        if types is None:
            types = torch.zeros(embeds.shape[:2], dtype=torch.long, device=embeds.device)
        return embeds + self.token_types(types)

    def _cache(self, given: Cache | None, use_cache: bool | None) -> Cache | None:
        """The cache to read and fill: the given one, or a new one if it is wanted."""
        config, has_decoder = self.config, hasattr(self, "decoder")
        if given is None:
            wanted = config.use_cache and not self.training if use_cache is None else use_cache
            if not wanted or not has_decoder:
                return None
            own = DynamicCache(config=config)
            return EncoderDecoderCache(own, DynamicCache(config=config)) if config.is_encoder_decoder else own
        if not has_decoder:
            raise ValueError("got past_key_values in a bidirectional model; expected none: it takes no cache")
        if isinstance(given, EncoderDecoderCache) != config.is_encoder_decoder:
            expected = "an EncoderDecoderCache" if config.is_encoder_decoder else "a decoder's, without cross-attention"
            raise ValueError(f"got past_key_values of type {type(given).__name__}; expected {expected}")
        check_layers(cast(Cache, _of_self_attention(given)), config.layer_types)
        return given


def _of_self_attention(cache: Cache | None) -> Cache | None:
    return cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache


def _layout(embeds: Tensor, mask: Tensor | None, segment_ids: Tensor | None, cache: Cache | None) -> TokenLayout:
    if segment_ids is None:
        return TokenLayout.of(mask, embeds, cache)
    if mask is not None:
        raise ValueError("got segment_ids and an attention_mask; expected one of the two: segment 0 is padding")
    if cache is not None:
        raise ValueError("got segment_ids and a cache (past_key_values, or use_cache=True); expected one of the two")
    if segment_ids.shape != embeds.shape[:2]:
        shapes = f"{tuple(segment_ids.shape)} for an input of shape {tuple(embeds.shape[:2])}"
        raise ValueError(f"got segment_ids of shape {shapes}; expected one segment per token")
    return TokenLayout.of_segments(segment_ids)


class _Encoder(nn.Module):
    """The encoder of an encoder-decoder with its embedding, as `generate()` calls it."""

    main_input_name = "input_ids"

    def __init__(self, model: SynthesizerModel) -> None:
        super().__init__()
        self.model, self.config = model, model.config

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """Encode input_ids (B, S), or inputs_embeds (B, S, d_model) instead."""
        return self.model._encode(input_ids, attention_mask, inputs_embeds, None, kwargs)[0]
