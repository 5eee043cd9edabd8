"""The encoder with a head on top, for texts and pairs of texts.

Shape legend: B batch, L slots, N labels.
"""

from __future__ import annotations

import copy
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_outputs import BaseModelOutput, SequenceClassifierOutput
from transformers.utils.generic import can_return_tuple

from ..linear import Linear
from ..masks import Padding
from .blocks import init_linear
from .configuration import SynthesizerConfig
from .dropout import dropout
from .loss import IGNORED
from .modeling import SynthesizerPreTrainedModel
from .stacks import SynthesizerEncoder

__all__ = ["SynthesizerForSequenceClassification"]

_CLASSES, _REGRESSION = "single_label_classification", "regression"


class SynthesizerForSequenceClassification(SynthesizerPreTrainedModel):
    """An encoder with synthesized attention, whose pooled output a linear layer maps to a class or to numbers.

    Its layers are the configuration's `num_layers`; of a configuration with encoder and decoder it takes the encoder's
    side, so that it can be loaded from a pretrained `SynthesizerForConditionalGeneration`: the embedding and the
    encoder come from there, the head is new. `num_labels`, `id2label` and `problem_type` are those of every classifier
    in transformers: "single_label_classification", or "regression" (by default where there is one label).

    Example:
        >>> config = SynthesizerConfig(vocab_size=100, d_model=16, num_heads=2, d_ff=32, num_layers=2, num_labels=3)
        >>> model = SynthesizerForSequenceClassification(config).eval()
        >>> model(torch.tensor([[5, 6, 7]])).logits.shape
        torch.Size([1, 3])

    Raises:
        ValueError: the configuration has no labels, or another problem type.
    """

    # The loss divides by `num_items_in_batch`, so gradient accumulation scales as if there were one large batch.
    accepts_loss_kwargs = True

    def __init__(self, config: SynthesizerConfig) -> None:
        config = _encoder_alone(config)
        labels, problem = config.num_labels, config.problem_type
        if not labels or problem not in (None, _CLASSES, _REGRESSION):
            raise ValueError(
                f"got num_labels={labels} and problem_type={problem!r}; expected labels, and {_CLASSES!r} or "
                f"{_REGRESSION!r} (None: regression for one label, else classes)"
            )
        super().__init__(config)
        self.encoder = SynthesizerEncoder(config)
        self.token_types = nn.Embedding(config.type_vocab_size, config.d_model) if config.type_vocab_size else None
        if self.token_types is not None:
            nn.init.normal_(self.token_types.weight, std=config.initializer_factor * config.d_model**-0.5)
        self.classifier = Linear(config.d_model, labels)
        init_linear(self.classifier, config.initializer_factor)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The embedding of the vocabulary."""
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the embedding of the vocabulary."""
        self.encoder.embed_tokens = cast(nn.Embedding, value)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> SequenceClassifierOutput:
        """Encode, pool, classify, and score.

        Args:
            input_ids: (B, L), a text or a pair of texts in one sequence; or `inputs_embeds` (B, L, d_model).
            attention_mask: (B, L), 1 at real tokens, padded on any side; by default all are.
            token_type_ids: (B, L), the kind of each token, by default 0: which side of a pair it is on. Read only where
                the configuration has `type_vocab_size`.
            labels: (B,) classes, of which −100 is not scored. For regression (B,) or (B, N) floats, all scored.
            output_attentions, output_hidden_states: return them, in the slots of the input.
            num_items_in_batch: what the summed loss is divided by; by default the number of labels.

        Returns:
            The loss where labels are given (cross-entropy, with label smoothing in training mode only; for regression
            the squared error), logits (B, N).

        Raises:
            ValueError: a sequence that is too long, a mask or labels that do not fit, or inputs missing or twice.
        """
        embeds = self._embed(input_ids, token_type_ids, inputs_embeds)
        padding = None
        if attention_mask is not None:
            padding = Padding.from_mask(attention_mask, batch=embeds.shape[0], length=embeds.shape[1])
        encoded = cast(
            BaseModelOutput,
            self.encoder(
                attention_mask=padding,
                inputs_embeds=embeds,
                output_attentions=self.config.output_attentions if output_attentions is None else output_attentions,
                output_hidden_states=(
                    self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
                ),
            ),
        )
        pooled = self._pool(cast(Tensor, encoded.last_hidden_state), padding)
        logits = self.classifier(dropout(pooled, self.config.dropout_rate, self.training))
        return SequenceClassifierOutput(
            loss=None if labels is None else self._loss(logits, labels, num_items_in_batch),
            logits=logits,
            hidden_states=encoded.hidden_states,
            attentions=encoded.attentions,
        )

    def _embed(self, input_ids: Tensor | None, types: Tensor | None, embeds: Tensor | None) -> Tensor:
        if (input_ids is None) == (embeds is None):
            raise ValueError("got both or neither of input_ids and inputs_embeds; expected one of the two")
        if embeds is None:
            embeds = cast(Tensor, self.encoder.embed_tokens(input_ids))
        if self.token_types is None:
            return embeds
        if types is None:
            types = torch.zeros(embeds.shape[:2], dtype=torch.long, device=embeds.device)
        return embeds + self.token_types(types)

    def _pool(self, hidden: Tensor, padding: Padding | None) -> Tensor:
        """(B, L, d_model) to (B, d_model)."""
        if padding is None or padding.full:
            return hidden.mean(dim=1) if self.config.classifier_pooling == "mean" else hidden[:, 0]
        if self.config.classifier_pooling == "mean":
            weights = padding.mask.to(hidden.dtype)
            return torch.einsum("bl,bld->bd", weights, hidden) / weights.sum(1, keepdim=True).clamp_min(1)
        first = padding.mask.to(torch.uint8).argmax(dim=1)
        return hidden[torch.arange(hidden.shape[0], device=hidden.device), first]

    def _loss(self, logits: Tensor, labels: Tensor, items: Tensor | int | None) -> Tensor:
        """Mean over the labels; with `items`, the share of this batch in a mean over that many."""
        if self.config.problem_type == _REGRESSION or (self.config.problem_type is None and logits.shape[1] == 1):
            targets = labels.reshape(len(logits), -1).float()
            if targets.shape != logits.shape:
                raise ValueError(f"got labels of shape {tuple(labels.shape)}; expected floats {tuple(logits.shape)}")
            loss = F.mse_loss(logits.float(), targets, reduction="sum")
            count: Tensor | int = targets.numel()
        else:
            if labels.shape != logits.shape[:1] or labels.is_floating_point():
                raise ValueError(
                    f"got labels of shape {tuple(labels.shape)} and dtype {labels.dtype}; expected classes, "
                    f"({len(logits)},) integers"
                )
            smoothing = self.config.label_smoothing if self.training else 0.0
            loss = F.cross_entropy(
                logits.float(), labels, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing
            )
            count = (labels != IGNORED).sum().clamp_min(1)
        return loss / (count if items is None else items)


def _encoder_alone(config: SynthesizerConfig) -> SynthesizerConfig:
    """The configuration of a model with one stack, which is the encoder of `config`."""
    if config.is_encoder_decoder:
        config = copy.deepcopy(config)
        if isinstance(config.synthesizer, dict):
            config.synthesizer = config.synthesizers("encoder")
        config.num_decoder_layers = config.num_layers
    return config.with_one_stack()
