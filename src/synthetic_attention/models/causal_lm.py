"""The decoder-only language model.

Shape legend: B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Cache, GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from ..kernels.linear import linear
from .blocks import make_lm_head
from .configuration import SynthesizerConfig
from .loss import IGNORED, head_loss, head_token_losses
from .modeling import SynthesizerModel, SynthesizerPreTrainedModel

__all__ = ["SynthesizerForCausalLM"]


class SynthesizerForCausalLM(SynthesizerPreTrainedModel, GenerationMixin):
    """A decoder-only Transformer with synthesized attention, which predicts the next token.

    It has the configuration's `num_layers` layers; `synthesizer` is a name or a list with one name per layer.

    Example:
        >>> config = SynthesizerConfig(vocab_size=100, d_model=16, num_heads=2, d_ff=32, num_layers=2)
        >>> model = SynthesizerForCausalLM(config).eval()
        >>> model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=4).shape[0]
        1

    Raises:
        ValueError: the configuration is for a bidirectional stack, or for an encoder and a decoder that differ.
    """

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: SynthesizerConfig) -> None:
        config = config.with_one_stack(is_decoder=True)
        super().__init__(config)
        self.model = SynthesizerModel(config)
        self.lm_head = make_lm_head(config)
        self.post_init()

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
        logits_to_keep: int = 0,
        num_items_in_batch: Tensor | int | None = None,
        smoothing: float = 0.0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Predict the token after each.

        Args:
            labels: (B, T), usually the input itself: the prediction after a token is scored with the label of the next
                real token of its row or segment, unless that label is −100.
            logits_to_keep: return the logits of this many tokens, the last ones; 0 for all. The loss is that of all.
            num_items_in_batch: divides the summed loss; by default the number of scored labels.
            smoothing: label smoothing of the loss, in training and evaluation alike.

        The other arguments, keywords included, are those of `SynthesizerModel`.

        Returns:
            The loss if there are labels, logits (B, T, V) unless the loss is fused (see `fused_loss` in the
            configuration), cache, states and weights.

        Raises:
            ValueError: a sequence that is too long, a mask or labels that do not fit, or inputs that exclude each
                other.
        """
        outputs: Any = self.model(
            input_ids,
            attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            segment_ids=segment_ids,
            use_cache=use_cache if labels is None else bool(use_cache),
            return_dict=True,
            **kwargs,
        )
        hidden = outputs.last_hidden_state
        if labels is not None and labels.shape != hidden.shape[:2]:
            expected = f"one label per token, (B, T) = {tuple(hidden.shape[:2])}"
            raise ValueError(f"got labels of shape {tuple(labels.shape)}; expected {expected}")
        loss, logits = None, None
        if not self.uses_fused_loss(labels):
            logits = linear(self.lm_head, hidden[:, -logits_to_keep:] if logits_to_keep else hidden)
        if labels is not None:
            following = _next_tokens(labels, attention_mask, segment_ids)
            known = None if logits_to_keep else logits
            targets = _targets(labels, following)
            loss = head_loss(self.lm_head, hidden, known, targets, smoothing, num_items_in_batch)
        rest = {name: value for name, value in outputs.items() if name != "last_hidden_state"}
        return CausalLMOutputWithPast(loss=loss, logits=logits, **rest)

    @torch.no_grad()
    def token_losses(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, segment_ids: Tensor | None = None
    ) -> Tensor:
        """Score given text: −log p(token | tokens before it) of each token, in nats. For a model in eval mode.

        Args:
            input_ids, attention_mask, segment_ids: (B, T), as in `forward`.

        Returns:
            (B, T), in float32 or wider; 0 at padding and at the first token of each row or segment, which is not
            predicted. The sum over a sentence that begins with the start token is its −log p.

        Raises:
            ValueError: a sequence that is too long, or a mask that does not fit.
        """
        outputs = self.model(input_ids, attention_mask, segment_ids=segment_ids, use_cache=False, return_dict=True)
        following = _next_tokens(input_ids, attention_mask, segment_ids)
        losses = head_token_losses(self.lm_head, outputs.last_hidden_state, _targets(input_ids, following))
        # From the token that predicts to the token that is predicted.
        return F.pad(torch.zeros_like(losses), (0, 1)).scatter(1, following, losses)[:, :-1]

    # `generate()` accepts `inputs_embeds` only if it is among these arguments.
    def prepare_inputs_for_generation(
        self, input_ids: Tensor, *args: Any, inputs_embeds: Tensor | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """The input of one step of `generate()`.

        Raises:
            ValueError: the sequence has the maximum length already, so no token can follow.
        """
        # A prompt of embeddings is not among these ids: then `forward` raises, one token later.
        self.model.decoder.check_length(input_ids.shape[1] + 1)
        parent: Any = super()
        return cast(
            "dict[str, Any]",
            parent.prepare_inputs_for_generation(input_ids, *args, inputs_embeds=inputs_embeds, **kwargs),
        )


def _next_tokens(tokens: Tensor, attention_mask: Tensor | None, segment_ids: Tensor | None) -> Tensor:
    """(B, T): the slot of the token that follows each token in its row or segment; T where none does."""
    batch, length = tokens.shape
    slots = torch.arange(length, device=tokens.device).expand(batch, -1)
    if segment_ids is not None:
        continues = (segment_ids[:, 1:] == segment_ids[:, :-1]) & (segment_ids[:, 1:] != 0)
        return torch.where(F.pad(continues, (0, 1)), slots + 1, length)
    if attention_mask is None:
        return slots + 1
    real = attention_mask[:, -length:].bool()
    # The first real slot from each slot on.
    real_slots = torch.where(real, slots, length).flip(1).cummin(1).values.flip(1)
    return torch.where(real, F.pad(real_slots[:, 1:], (0, 1), value=length), length)


def _targets(labels: Tensor, following: Tensor) -> Tensor:
    """The label (B, T) that scores the prediction after each token."""
    return F.pad(labels, (0, 1), value=IGNORED).gather(1, following)
