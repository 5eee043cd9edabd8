"""A stack with a classification head, for texts and pairs of texts.

Shape legend: B batch, L slots, N labels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils.generic import can_return_tuple

from ..kernels.dropout import dropout
from .configuration import SynthesizerConfig
from .loss import IGNORED
from .modeling import SynthesizerModel, SynthesizerPreTrainedModel, init_linears

__all__ = ["SynthesizerForSequenceClassification"]

_CLASSES, _REGRESSION = "single_label_classification", "regression"


class SynthesizerForSequenceClassification(SynthesizerPreTrainedModel):
    """One stack whose pooled output a linear layer maps to classes or to numbers.

    From a configuration with encoder and decoder it takes the encoder, so it can be loaded from a pretrained
    `SynthesizerForConditionalGeneration`: embedding and encoder come from there, the head is new. Likewise it can be
    loaded from a `SynthesizerForCausalLM`; its stack is causal then, and the head reads the last real token.
    `num_labels`, `id2label` and `problem_type` are those of every classifier in transformers:
    "single_label_classification", or "regression" (the default with one label).

    Raises:
        ValueError: the configuration has no labels, or another problem type.
    """

    def __init__(self, config: SynthesizerConfig) -> None:
        config = config.with_one_stack(is_decoder=bool(config.is_decoder))
        labels, problem = config.num_labels, config.problem_type
        if not labels or problem not in (None, _CLASSES, _REGRESSION):
            raise ValueError(
                f"got num_labels={labels} and problem_type={problem!r}; expected labels, and {_CLASSES!r} or "
                f"{_REGRESSION!r} (None: regression for one label, else classes)"
            )
        super().__init__(config)
        self.model = SynthesizerModel(config)
        self.classifier = nn.Linear(config.d_model, labels)
        init_linears(self.classifier, config.initializer_factor)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        smoothing: float = 0.0,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> SequenceClassifierOutput:
        """Encode, pool, classify, and score.

        Args:
            input_ids: (B, L), a text or a pair of texts in one sequence.
            token_type_ids: (B, L), the side of a pair that each token is on. Read only with a `type_vocab_size`.
            labels: (B,) classes; −100 is not scored. For regression (B,) or (B, N) floats, all scored.
            num_items_in_batch: divides the summed loss; by default the number of labels.
            smoothing: label smoothing of the loss of classes, in training and evaluation alike.

        The other arguments are those of `SynthesizerModel`.

        Returns:
            The loss if there are labels (cross-entropy; for regression the squared error), logits (B, N).

        Raises:
            ValueError: a sequence that is too long, a mask or labels that do not fit, or inputs missing or twice.
        """
        outputs: Any = self.model(
            input_ids,
            attention_mask,
            inputs_embeds=inputs_embeds,
            token_type_ids=token_type_ids,
            use_cache=False,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        pooled = self._pool(outputs.last_hidden_state, attention_mask)
        logits = self.classifier(dropout(pooled, self.config.dropout_rate, self.training))
        loss = None
        if labels is not None:
            loss, count = self._loss(logits, labels, smoothing)
            loss = loss / (count if num_items_in_batch is None else num_items_in_batch)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )

    def _pool(self, hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
        """(B, L, d_model) to (B, d_model). Padded tokens are zeros."""
        pooling = "last" if self.config.is_decoder else self.config.classifier_pooling
        mask = torch.ones_like(hidden[..., 0]) if attention_mask is None else attention_mask.bool()
        if pooling == "mean":
            weights = mask.to(hidden.dtype)
            return torch.einsum("bl,bld->bd", weights, hidden) / weights.sum(1, keepdim=True).clamp_min(1)
        slots = mask.to(torch.uint8)
        token = slots.argmax(dim=1) if pooling == "first" else mask.shape[1] - 1 - slots.flip(1).argmax(dim=1)
        return hidden[torch.arange(hidden.shape[0], device=hidden.device), token]

    def _loss(self, logits: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor | int]:
        """The sum of the losses, and the number of labels that are scored."""
        if self.config.problem_type == _REGRESSION or (self.config.problem_type is None and logits.shape[1] == 1):
            targets = labels.reshape(len(logits), -1).float()
            if targets.shape != logits.shape:
                raise ValueError(f"got labels of shape {tuple(labels.shape)}; expected floats {tuple(logits.shape)}")
            return F.mse_loss(logits.float(), targets, reduction="sum"), targets.numel()
        if labels.shape != logits.shape[:1] or labels.is_floating_point():
            raise ValueError(
                f"got labels of shape {tuple(labels.shape)} and dtype {labels.dtype}; expected classes, "
                f"({len(logits)},) integers"
            )
        loss = F.cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing)
        return loss, (labels != IGNORED).sum().clamp_min(1)
