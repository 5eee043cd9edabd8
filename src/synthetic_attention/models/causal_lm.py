"""The decoder-only language model.

Shape legend: B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Cache, GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from .configuration import SynthesizerConfig
from .loss import IGNORED, check_labels, head_token_losses, loss_and_logits
from .modeling import SynthesizerModel, make_lm_head
from .pretrained import SynthesizerPreTrainedModel

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
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        segment_ids: Tensor | None = None,
        shift_labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        smoothing: float = 0.0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Predict the token after each.

        Args:
            labels: (B, T), usually the input itself: the prediction after a token is scored with the label of the next
                real token of its row or segment, unless that label is −100.
            logits_to_keep: return the logits of this many tokens, the last ones, 0 for all; or of the slots in this
                tensor (n,). The loss is that of all.
            shift_labels: (B, T), the label of each prediction, instead of `labels`.
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
        x: Any = input_ids if inputs_embeds is None else inputs_embeds
        # Labels follow the segments. Without labels the model reads the positions.
        if labels is not None and segment_ids is None and x is not None:
            segment_ids, attention_mask = self.model.read_positions(position_ids, x, attention_mask, past_key_values)
        outputs: Any = self.model(
            input_ids,
            attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            segment_ids=segment_ids,
            use_cache=use_cache if labels is None and shift_labels is None else bool(use_cache),
            return_dict=True,
            **kwargs,
        )
        hidden, targets = outputs.last_hidden_state, shift_labels
        if labels is not None and targets is None:
            check_labels(labels, hidden)
            targets, _ = _next_tokens(labels, attention_mask, segment_ids)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        if targets is None:
            hidden = hidden[:, kept]
        loss, logits = loss_and_logits(self, hidden, targets, smoothing, num_items_in_batch)
        if targets is not None and logits is not None:
            logits = logits[:, kept]
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

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
        targets, following = _next_tokens(input_ids, attention_mask, segment_ids)
        losses = head_token_losses(self.lm_head, outputs.last_hidden_state, targets)
        # From the token that predicts to the token that is predicted.
        return F.pad(torch.zeros_like(losses), (0, 1)).scatter(1, following, losses)[:, :-1]

    def _prepare_position_ids_for_generation(self, *args: Any) -> None:
        """None: `generate()` need not make the positions that the mask says."""

    # `generate()` accepts `inputs_embeds` only if it is among these arguments.
    def prepare_inputs_for_generation(
        self, input_ids: Tensor, *args: Any, inputs_embeds: Tensor | None = None, **kwargs: Any
    ) -> Any:
        """The input of one step of `generate()`; ValueError if the sequence is full, so that no token can follow."""
        # A prompt of embeddings is not among these ids: then `forward` raises, one token later.
        self.model.decoder.check_length(input_ids.shape[1] + 1)
        parent: Any = super()
        return parent.prepare_inputs_for_generation(input_ids, *args, inputs_embeds=inputs_embeds, **kwargs)


def _next_tokens(labels: Tensor, attention_mask: Tensor | None, segment_ids: Tensor | None) -> tuple[Tensor, Tensor]:
    """(B, T): label and slot of the token that follows each token in its row or segment; −100 and T where none does."""
    batch, length = labels.shape
    slots = torch.arange(length, device=labels.device).expand(batch, -1)
    following = slots + 1
    if segment_ids is not None:
        continues = (segment_ids[:, 1:] == segment_ids[:, :-1]) & (segment_ids[:, 1:] != 0)
        following = following.where(F.pad(continues, (0, 1)), length)
    elif attention_mask is not None:
        real = attention_mask[:, -length:].bool()
        # The first real slot from each slot on.
        real_slots = slots.where(real, length).flip(1).cummin(1).values.flip(1)
        following = F.pad(real_slots[:, 1:], (0, 1), value=length).where(real, length)
    return F.pad(labels, (0, 1), value=IGNORED).gather(1, following), following
