"""The pretrained-model base and the sequence-to-sequence model."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, EncoderDecoderCache, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.utils.generic import can_return_tuple

from ..masks import Padding
from .blocks import init_linear, make_head
from .cache import check_layers
from .configuration import SynthesizerConfig
from .language_model import SynthesizerGenerationMixin
from .loss import IGNORED
from .positions import LearnedPositions
from .stacks import SynthesizerEncoder, SynthesizerStack, read_padding

__all__ = ["SynthesizerForConditionalGeneration", "SynthesizerPreTrainedModel"]


class SynthesizerPreTrainedModel(PreTrainedModel):
    """What all Synthesizer models share: configuration class, initialisation, what transformers may do with them."""

    config_class = SynthesizerConfig
    config: SynthesizerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["SynthesizerBlock"]  # noqa: RUF012
    _supports_sdpa = True

    def init_weights(self) -> None:
        """Tie the weights: constructors have initialised all modules, as everywhere in torch."""
        self.tie_weights(recompute_mapping=False)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise one module whose weights a checkpoint does not have, or that is new (a larger embedding)."""
        # Parents come after their children: a fused projection gets its blocks from the module that owns it.
        if isinstance(module, nn.Linear) and module is not getattr(self, "lm_head", None):
            init_linear(module, self.config.initializer_factor)
        elif isinstance(module, nn.Embedding | nn.Linear) and not isinstance(module, LearnedPositions):
            nn.init.normal_(module.weight, std=self.config.initializer_factor * self.config.d_model**-0.5)
        elif callable(reset := getattr(module, "reset_parameters", None)):
            reset()


class SynthesizerForConditionalGeneration(SynthesizerPreTrainedModel, SynthesizerGenerationMixin):
    """An encoder-decoder Transformer with synthesized self-attention, for translation, summarization and the like.

    Example:
        >>> config = SynthesizerConfig(vocab_size=100, d_model=16, num_heads=2, d_ff=32, num_layers=2)
        >>> model = SynthesizerForConditionalGeneration(config).eval()
        >>> model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=4).shape[0]
        1
    """

    _tied_weights_keys = {"lm_head.weight": "encoder.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: SynthesizerConfig) -> None:
        if not config.is_encoder_decoder:
            raise ValueError(
                "got the configuration of a model with one stack of layers (is_encoder_decoder=False); expected that "
                "of an encoder-decoder"
            )
        super().__init__(config)
        self.encoder = SynthesizerEncoder(config)
        self.decoder = SynthesizerStack(config, "decoder", is_causal=True, cross_attention=True)
        self.lm_head = make_head(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The embedding of source and target pieces."""
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the embedding of source and target pieces."""
        self.encoder.embed_tokens = cast(nn.Embedding, value)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Labels (B, T) shifted right: the decoder's start token goes in front, ignored labels become padding.

        Raises:
            ValueError: the configuration lacks the start or the padding token.
        """
        start, pad = self.config.decoder_start_token_id, self.config.pad_token_id
        if start is None or pad is None:
            raise ValueError(
                f"got decoder_start_token_id={start} and pad_token_id={pad}; expected both, to make the decoder's "
                "input from labels. Set them in the configuration, or pass decoder_input_ids"
            )
        shifted = labels.new_full(labels.shape, start)
        shifted[:, 1:] = labels[:, :-1].masked_fill(labels[:, :-1] == IGNORED, pad)
        return shifted

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
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_logits: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Seq2SeqLMOutput:
        """Encode, decode, and score.

        Args:
            input_ids: (B, S) source; or `inputs_embeds` (B, S, d_model).
            attention_mask: (B, S), 1 at real source tokens, padded on any side.
            decoder_input_ids: (B, T) target, by default the labels shifted right; or `decoder_inputs_embeds`.
            decoder_attention_mask: (B, past + T), 1 at real target tokens; by default all are.
            encoder_outputs: what the encoder returned, in place of the source.
            past_key_values: an `EncoderDecoderCache` with the tokens before these.
            labels: (B, T), padded on the right with −100, which is not scored.
            use_cache: return a cache; by default as the configuration says, never with labels or in training.
            output_attentions, output_hidden_states: return them, in the slots of the input.
            return_logits: whether the output has logits. By default it has, but in training mode with labels, where
                the loss is computed without ever storing them (see `linear_cross_entropy`; `fused_loss=False` in the
                configuration turns that off).
            num_items_in_batch: what the summed loss is divided by; by default the number of labels.

        Returns:
            The loss where labels are given (label smoothing in training mode only), logits (B, T, vocab_size), cache.

        Raises:
            ValueError: a sequence that is too long, a mask that does not fit, or inputs missing or twice.
        """
        attentions = bool(self.config.output_attentions if output_attentions is None else output_attentions)
        states = bool(self.config.output_hidden_states if output_hidden_states is None else output_hidden_states)
        encoded, padding = self._encode(input_ids, attention_mask, inputs_embeds, encoder_outputs, attentions, states)
        embeds = self._embed_target(decoder_input_ids, decoder_inputs_embeds, labels)
        memory = cast(Tensor, encoded.last_hidden_state)
        cache = self._cache(past_key_values, use_cache, scored=labels is not None)
        decoded = self.decoder(
            embeds,
            decoder_attention_mask,
            memory=memory,
            memory_mask=None if padding is None else padding.mask,
            past_key_values=cache,
            need_weights=attentions,
            keep_states=states,
        )
        hidden = decoded.last_hidden_state
        logits = self.lm_head(hidden) if self._wants_logits(return_logits, labels is not None) else None
        loss = None
        if labels is not None:
            _check_labels(labels, hidden)
            loss = self._loss(hidden, logits, labels, num_items_in_batch)
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            past_key_values=cache,
            decoder_hidden_states=decoded.hidden_states,
            decoder_attentions=decoded.attentions,
            cross_attentions=decoded.cross_attentions,
            encoder_last_hidden_state=memory,
            encoder_hidden_states=encoded.hidden_states,
            encoder_attentions=encoded.attentions,
        )

    def _encode(
        self,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        inputs_embeds: Tensor | None,
        given: BaseModelOutput | tuple[Tensor, ...] | None,
        attentions: bool,
        states: bool,
    ) -> tuple[BaseModelOutput, Padding | None]:
        """The encoder's output, made here unless it is given, and the padding of its tokens."""
        if isinstance(given, tuple):
            given = BaseModelOutput(*cast(Any, given))
        source = given.last_hidden_state if given is not None else input_ids if inputs_embeds is None else inputs_embeds
        padding = None if source is None else read_padding(attention_mask, source.shape[0], source.shape[1])
        if given is None:
            given = cast(BaseModelOutput, self.encoder(input_ids, padding, inputs_embeds, attentions, states))
        return given, padding

    def _embed_target(self, input_ids: Tensor | None, embeds: Tensor | None, labels: Tensor | None) -> Tensor:
        if input_ids is None and embeds is None and labels is not None:
            input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        if (input_ids is None) == (embeds is None):
            raise ValueError(
                "got both or neither of decoder_input_ids and decoder_inputs_embeds; expected one of the two, or labels"
            )
        return cast(Tensor, self.encoder.embed_tokens(input_ids)) if embeds is None else embeds

    def _cache(self, given: Cache | None, use_cache: bool | None, scored: bool) -> EncoderDecoderCache | None:
        """The cache to read and fill, a new one where it is wanted and none is given."""
        if given is not None and not isinstance(given, EncoderDecoderCache):
            raise ValueError(f"got past_key_values of type {type(given).__name__}; expected an EncoderDecoderCache")
        if given is not None:
            check_layers(given.self_attention_cache, self.config.layer_types)
        if given is not None or not self._wants_cache(use_cache, scored):
            return given
        return EncoderDecoderCache(DynamicCache(config=self.config), DynamicCache(config=self.config))


def _check_labels(labels: Tensor, hidden: Tensor) -> None:
    if labels.shape != hidden.shape[:2]:
        raise ValueError(
            f"got labels of shape {tuple(labels.shape)} for a target of shape {tuple(hidden.shape[:2])}; expected one "
            "label per target token"
        )
