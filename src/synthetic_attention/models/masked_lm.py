"""The bidirectional language model, which predicts masked tokens."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.modeling_outputs import MaskedLMOutput
from transformers.utils.generic import can_return_tuple

from .configuration import SynthesizerConfig
from .loss import loss_and_logits
from .modeling import SynthesizerModel, make_lm_head
from .pretrained import SynthesizerPreTrainedModel

__all__ = ["SynthesizerForMaskedLM"]


class SynthesizerForMaskedLM(SynthesizerPreTrainedModel):
    """A bidirectional stack with an output projection: BERT's pretraining with synthesized attention.

    From a configuration or checkpoint of an encoder-decoder it takes the encoder, and the output projection.

    Raises:
        ValueError: the configuration is for a causal stack.
    """

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: SynthesizerConfig) -> None:
        config = config.with_one_stack(is_decoder=False)
        super().__init__(config)
        self.model = SynthesizerModel(config)
        self.lm_head = make_lm_head(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        smoothing: float = 0.0,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        """Predict every token.

        Args:
            labels: (B, L), −100 where the token is not scored, as `DataCollatorForLanguageModeling` makes them.
            num_items_in_batch: divides the summed loss; by default the number of scored labels.
            smoothing: label smoothing of the loss, in training and evaluation alike.

        The other arguments, keywords included, are those of `SynthesizerModel`.

        Returns:
            The loss if there are labels, logits (B, L, vocab_size) unless the loss is fused (see `fused_loss` in the
            configuration), states and weights.

        Raises:
            ValueError: a sequence that is too long, a mask or labels that do not fit, or inputs missing or twice.
        """
        given = {"inputs_embeds": inputs_embeds, "token_type_ids": token_type_ids}
        outputs: Any = self.model(input_ids, attention_mask, return_dict=True, **given, **kwargs)
        loss, logits = loss_and_logits(self, outputs.last_hidden_state, labels, smoothing, num_items_in_batch)
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )
