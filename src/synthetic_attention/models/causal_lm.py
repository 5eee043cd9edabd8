"""The decoder-only language model.

Shape legend: B batch, L slots, T new tokens, V pieces of the vocabulary.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from ..masks import Padding
from .blocks import make_embedding, make_head
from .cache import check_layers
from .configuration import SynthesizerConfig
from .language_model import SynthesizerGenerationMixin
from .loss import IGNORED, linear_token_losses, token_losses
from .modeling import SynthesizerPreTrainedModel
from .sentences import PackedSentences
from .stacks import StackOutput, SynthesizerStack, read_padding

__all__ = ["SynthesizerForCausalLM"]


class SynthesizerForCausalLM(SynthesizerPreTrainedModel, SynthesizerGenerationMixin):
    """A decoder-only Transformer with synthesized attention, which predicts each token from those before it.

    Its layers are the configuration's `num_layers`, its synthesizers a name or a list with one per layer.

    Example:
        >>> config = SynthesizerConfig(vocab_size=100, d_model=16, num_heads=2, d_ff=32, num_layers=2)
        >>> model = SynthesizerForCausalLM(config).eval()
        >>> model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=4).shape[0]
        1

    Raises:
        ValueError: the configuration tells an encoder from a decoder.
    """

    _tied_weights_keys = {"lm_head.weight": "embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: SynthesizerConfig) -> None:
        config = config.with_one_stack()
        super().__init__(config)
        self.embed_tokens = make_embedding(config)
        self.decoder = SynthesizerStack(config, "decoder", is_causal=True, cross_attention=False)
        self.lm_head = make_head(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The embedding of the vocabulary."""
        return self.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the embedding of the vocabulary."""
        self.embed_tokens = cast(nn.Embedding, value)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        segment_ids: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_logits: bool | None = None,
        logits_to_keep: int = 0,
        num_items_in_batch: Tensor | int | None = None,
    ) -> CausalLMOutputWithPast:
        """Predict the next token after each.

        Args:
            input_ids: (B, T); or `inputs_embeds` (B, T, d_model).
            attention_mask: (B, past + T), 1 at real tokens, padded on any side; by default all are.
            past_key_values: a cache with the tokens before these.
            labels: (B, T), mostly the input itself: the prediction after a token is scored with the label of the next.
                Where that is −100 or padding, or starts a row or segment, nothing is scored.
            segment_ids: (B, T), of rows that several sentences are packed in, in place of a mask: 0 at padding, and for
                each sentence a number other than its neighbours'. None sees another: each is scored as it is alone.
            use_cache: return a cache; by default as the configuration says, never with labels, segments or in training.
            output_attentions, output_hidden_states: return them, in the slots of the input.
            return_logits: whether the output has logits. By default it has, but in training mode with labels, where
                the loss is computed without ever storing them (see `linear_cross_entropy`; `fused_loss=False` in the
                configuration turns that off).
            logits_to_keep: of how many tokens, the last, to return logits; 0 for all. The loss is that of all.
            num_items_in_batch: what the summed loss is divided by; by default the number of labels scored.

        Returns:
            The loss where labels are given (label smoothing in training mode only), logits (B, T, V), cache.

        Raises:
            ValueError: a sequence that is too long, a mask that does not fit, or inputs that exclude each other.
        """
        attentions = bool(self.config.output_attentions if output_attentions is None else output_attentions)
        states = bool(self.config.output_hidden_states if output_hidden_states is None else output_hidden_states)
        if segment_ids is not None and (attentions or past_key_values is not None or use_cache):
            raise ValueError(
                "got segment_ids with a cache or output_attentions; expected neither. Give each sentence a row to have "
                "them"
            )
        embeds = self._embed(input_ids, inputs_embeds)
        cache = self._cache(past_key_values, use_cache, scored=labels is not None or segment_ids is not None)
        decoded, layout = self._decode(embeds, attention_mask, segment_ids, cache, attentions, states)
        loss, targets = None, None
        if labels is not None:
            targets = _targets(labels, layout, embeds, attention_mask)
        if layout is not None:
            decoded = decoded.restored(layout)
        hidden = decoded.last_hidden_state
        logits = None
        if self._wants_logits(return_logits, labels is not None):
            logits = self.lm_head(hidden[:, -logits_to_keep:] if logits_to_keep else hidden)
        if targets is not None:
            loss = self._loss(hidden, None if logits_to_keep else logits, targets, num_items_in_batch)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=cache,
            hidden_states=decoded.hidden_states,
            attentions=decoded.attentions,
        )

    @torch.no_grad()
    def token_losses(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, segment_ids: Tensor | None = None
    ) -> Tensor:
        """Score given text: −log p(token | those before it) of each token, in nats. For a model in eval mode.

        Args:
            input_ids, attention_mask, segment_ids: (B, L), as in `forward`.

        Returns:
            (B, L), in float32 or wider; 0 at padding and at the first token of each row or segment, which nothing
            predicts. Their sum over a sentence that begins with the token for beginnings is its −log p.

        Raises:
            ValueError: a sequence that is too long, or a mask that does not fit.
        """
        embeds = self._embed(input_ids, None)
        decoded, layout = self._decode(embeds, attention_mask, segment_ids)
        tokens = input_ids if layout is None else layout.align(input_ids)
        targets = _next(tokens, None if layout is None else layout.aligned.mask)
        hidden = decoded.last_hidden_state
        if self._head_is_a_product():
            losses = linear_token_losses(hidden, self.lm_head.weight, targets)
        else:
            losses = token_losses(self.lm_head(hidden), targets)
        # What the prediction after a token costs is what the next token costs.
        losses = torch.cat([torch.zeros_like(losses[:, :1]), losses[:, :-1]], dim=1)
        return losses if layout is None else layout.restore(losses)

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, *args: Any, inputs_embeds: Tensor | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """The input of one step of `generate()`.

        Raises:
            ValueError: the sequence is as long as one may be, so that no token can follow.
        """
        # Embeddings of a prompt are not among these ids: then, `forward` notices, one token later.
        self.decoder.check_length(input_ids.shape[1] + 1)
        parent: Any = super()
        inputs: dict[str, Any] = parent.prepare_inputs_for_generation(
            input_ids, *args, inputs_embeds=inputs_embeds, **kwargs
        )
        return inputs

    def _embed(self, input_ids: Tensor | None, embeds: Tensor | None) -> Tensor:
        if (input_ids is None) == (embeds is None):
            raise ValueError("got both or neither of input_ids and inputs_embeds; expected one of the two")
        return cast(Tensor, self.embed_tokens(input_ids)) if embeds is None else embeds

    def _decode(
        self,
        embeds: Tensor,
        attention_mask: Tensor | None,
        segment_ids: Tensor | None,
        cache: Cache | None = None,
        attentions: bool = False,
        states: bool = False,
    ) -> tuple[StackOutput, Padding | PackedSentences | None]:
        """The output of the layers, and how it is laid out: None for the slots of the input, else by its `restore`."""
        layout: Padding | PackedSentences | None = None
        if segment_ids is not None:
            if attention_mask is not None or segment_ids.shape != embeds.shape[:2]:
                raise ValueError(
                    f"got segment_ids of shape {tuple(segment_ids.shape)} for an input {tuple(embeds.shape[:2])}"
                    f"{'' if attention_mask is None else ' and an attention_mask'}; expected one segment per token, 0 "
                    "at padding, and no mask"
                )
            layout = PackedSentences.from_segments(segment_ids)
        elif cache is None:
            # With a cache the slots stay as they are.
            layout = read_padding(attention_mask, embeds.shape[0], embeds.shape[1])
        decoded = self.decoder(
            embeds if layout is None else layout.align(embeds),
            attention_mask if layout is None else layout.aligned,
            past_key_values=cache,
            need_weights=attentions,
            keep_states=states,
        )
        return decoded, layout

    def _cache(self, given: Cache | None, use_cache: bool | None, scored: bool) -> Cache | None:
        """The cache to read and fill, a new one where it is wanted and none is given."""
        if isinstance(given, EncoderDecoderCache):
            raise ValueError("got past_key_values of type EncoderDecoderCache; expected one without cross-attention")
        if given is not None:
            check_layers(given, self.config.layer_types)
        if given is not None or not self._wants_cache(use_cache, scored):
            return given
        return DynamicCache(config=self.config)


def _next(tokens: Tensor, real: Tensor | None) -> Tensor:
    """The label (B, L) of what follows each token; ignored after the last, and at or before padding."""
    following = torch.full_like(tokens, IGNORED)
    following[:, :-1] = tokens[:, 1:]
    if real is not None:
        following = following.masked_fill(~real, IGNORED)
        following[:, :-1].masked_fill_(~real[:, 1:], IGNORED)
    return following


def _targets(
    labels: Tensor, layout: Padding | PackedSentences | None, embeds: Tensor, attention_mask: Tensor | None
) -> Tensor:
    """What the prediction after each token is scored with, in the slots of the input."""
    if labels.shape != embeds.shape[:2]:
        raise ValueError(
            f"got labels of shape {tuple(labels.shape)} for an input of shape {tuple(embeds.shape[:2])}; expected one "
            "label per token"
        )
    if layout is None and attention_mask is not None:
        # With a cache the tokens stay in their slots; what follows one is the next that is real all the same.
        layout = read_padding(attention_mask[:, -labels.shape[1] :], *labels.shape)
    if layout is None:
        return _next(labels, None)
    # Padding comes back as zeros, which are to be ignored.
    return layout.restore(_next(layout.align(labels), layout.aligned.mask) - IGNORED) + IGNORED
