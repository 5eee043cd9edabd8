"""Classifiers of texts and of tokens.

Shape legend: B batch, T tokens, N labels.
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
from .heads import PerToken, hidden_layer
from .loss import IGNORED, mean_loss
from .modeling import SynthesizerModel
from .positions import read_positions
from .pretrained import SynthesizerPreTrainedModel, init_linears

_CLASS, _CLASSES, _REGRESSION = "single_label_classification", "multi_label_classification", "regression"


class _Classifier(SynthesizerPreTrainedModel):
    def __init__(self, config: SynthesizerConfig) -> None:
        config = config.with_one_stack()
        if not config.num_labels:
            raise ValueError(f"got num_labels={config.num_labels}; expected at least one label")
        super().__init__(config)
        self.model = SynthesizerModel(config)
        self.classifier = nn.Linear(config.d_model, config.num_labels)
        init_linears(self.classifier, config.initializer_factor)
        self.post_init()


class SynthesizerForSequenceClassification(_Classifier):
    """One stack whose pooled output a linear layer maps to classes or to numbers, or with `classifier_activation` two.

    It can be loaded from any other head's checkpoint. From that of an encoder-decoder it takes the encoder. From that
    of a causal model it takes the causal stack, and the head reads the last real token.
    `num_labels`, `id2label` and `problem_type` are those of every classifier in transformers:
    "single_label_classification", "multi_label_classification", or "regression" (the default with one label).

    Raises:
        ValueError: the configuration has no labels.
    """

    def __init__(self, config: SynthesizerConfig) -> None:
        super().__init__(config)
        self.pooler = hidden_layer(config, config.classifier_activation)

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
        position_ids: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        use_cache: bool | None = None,
    ) -> SequenceClassifierOutput:
        """Encode, pool, classify, and score.

        Args:
            input_ids: (B, T), a text or a pair of texts in one sequence.
            token_type_ids: (B, T), the side of a pair that each token is on. Read only with a `type_vocab_size`.
            labels: (B,) classes; −100 is not scored. For regression (B,) or (B, N) numbers, all scored; for several
                labels at once (B, N), 1 where a label holds, else 0.
            num_items_in_batch: divides the summed loss; by default the number of labels.
            smoothing: label smoothing of the loss of classes, in training and evaluation alike.
            position_ids: (B or 1, T), those of the mask.

        The other arguments are those of `SynthesizerModel`; nothing is cached.

        Returns:
            The loss if there are labels (cross-entropy; binary cross-entropy for several labels at once; the squared
            error for regression), logits (B, N).

        Raises:
            ValueError: a sequence that is too long, a mask or labels that do not fit, or inputs missing or twice.
        """
        x: Any = input_ids if inputs_embeds is None else inputs_embeds
        if x is not None and read_positions(position_ids, x, attention_mask)[0] is not None:
            raise ValueError("got position_ids of several texts in a row; expected one text per row, with one label")
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
        pooled = pooled if self.pooler is None else self.pooler(pooled)
        logits = self.classifier(dropout(pooled, self.config.dropout_rate, self.training))
        loss = None if labels is None else self._loss(logits, labels, smoothing, num_items_in_batch)
        return SequenceClassifierOutput(loss, logits, outputs.hidden_states, outputs.attentions)

    def _pool(self, hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
        """(B, T, d_model) to (B, d_model). Padded tokens are zeros."""
        if not hidden.shape[1]:
            return hidden.sum(dim=1)
        pooling = "last" if self.config.is_decoder else self.config.classifier_pooling
        slots = (torch.ones_like(hidden[..., 0]) if attention_mask is None else attention_mask).bool().to(torch.uint8)
        if pooling == "mean":
            # In half precision a sum over many tokens overflows.
            wide = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
            total = torch.einsum("bl,bld->bd", slots.to(wide.dtype), wide)
            return (total / slots.sum(1, keepdim=True).clamp_min(1)).to(hidden.dtype)
        token = slots.argmax(dim=1) if pooling == "first" else slots.shape[1] - 1 - slots.flip(1).argmax(dim=1)
        return hidden[torch.arange(hidden.shape[0], device=hidden.device), token]

    def _loss(
        self, logits: Tensor, labels: Tensor, smoothing: float, num_items_in_batch: Tensor | int | None
    ) -> Tensor:
        problem = self.config.problem_type or (_REGRESSION if logits.shape[1] == 1 else _CLASS)
        logits = logits.to(labels.device, torch.float32)
        if problem != _CLASS:
            targets = labels.reshape(*(labels.shape[:1] or (1,)), labels.shape[1:].numel()).float()
            if targets.shape != logits.shape:
                raise ValueError(f"got labels of shape {tuple(labels.shape)}; expected numbers {tuple(logits.shape)}")
            loss = F.mse_loss if problem == _REGRESSION else F.binary_cross_entropy_with_logits
            count = max(1, targets.numel()) if num_items_in_batch is None else num_items_in_batch
            return loss(logits, targets, reduction="sum") / count
        if labels.shape != logits.shape[:1] or labels.is_floating_point():
            raise ValueError(
                f"got labels of shape {tuple(labels.shape)} and dtype {labels.dtype}; expected classes, "
                f"({len(logits)},) integers. Several labels at once need problem_type={_CLASSES!r}"
            )
        total = F.cross_entropy(logits, labels.long(), ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing)
        return mean_loss(total, labels, num_items_in_batch)


class SynthesizerForTokenClassification(PerToken, _Classifier):
    """One stack, and a linear layer that maps each token to one of `num_labels` classes: named entities, for example.

    It can be loaded from any other head's checkpoint, as `SynthesizerForSequenceClassification`.

    Raises:
        ValueError: the configuration has no labels.
    """

    head_name, _is_fused = "classifier", False

    def _loss_and_logits(self, hidden: Tensor, *arguments: Any) -> tuple[Tensor | None, Tensor | None]:
        return super()._loss_and_logits(dropout(hidden, self.config.dropout_rate, self.training), *arguments)
