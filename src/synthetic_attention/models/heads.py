"""Language models, and what they share with classifiers.

Shape legend: B batch, T tokens, V vocabulary, N labels.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Cache, GenerationMixin
from transformers.activations import ACT2FN
from transformers.modeling_outputs import (
    BaseModelOutput,
    CausalLMOutputWithPast,
    MaskedLMOutput,
    Seq2SeqLMOutput,
    TokenClassifierOutput,
)
from transformers.utils.generic import can_return_tuple

from ..kernels.matmul import is_plain, linear
from ..layout import check_mask, read_mask
from .blocks import make_norm
from .configuration import SynthesizerConfig
from .loss import (
    IGNORED,
    check_labels,
    cross_entropy,
    head_token_losses,
    linear_cross_entropy,
    mean_loss,
    scored_rows,
    up_to_last_scored,
)
from .modeling import SynthesizerModel
from .positions import read_positions
from .pretrained import SynthesizerPreTrainedModel, init_linears


class _TokenScores(SynthesizerPreTrainedModel):
    """The loss and the logits of heads that score each token."""

    head_name = "lm_head"

    @property
    def _is_fused(self) -> bool:
        """Whether the loss is computed without storing the logits."""
        return self.training and self.config.fused_loss

    def _scored_rows(self, labels: Tensor | None) -> Tensor | None:
        """`scored_rows` of the labels for a fused loss, else None."""
        return scored_rows(labels) if labels is not None and self._is_fused else None

    def _loss_and_logits(
        self,
        hidden: Tensor,
        labels: Tensor | None,
        scored: Tensor | None,
        smoothing: float,
        num_items_in_batch: Tensor | int | None,
    ) -> tuple[Tensor | None, Tensor | None]:
        """The loss of hidden states (B, T, d_model), None without labels; logits, None if the loss is fused.

        `scored` is `_scored_rows(labels)`, from before the layers.
        """
        head: Any = getattr(self, self.head_name)
        if labels is None:
            return None, linear(head, hidden)
        check_labels(labels, hidden.shape[:-1])
        logits = None if self._is_fused else linear(head, hidden)
        # The weight is used directly, unless something else happens when the head is called (a hook, an adapter).
        if logits is None and is_plain(head):
            loss = linear_cross_entropy(hidden, head.weight, labels, smoothing, head.bias, scored)
        else:
            loss = cross_entropy(head(hidden) if logits is None else logits, labels, smoothing)
        return mean_loss(loss.to(labels.device), labels, num_items_in_batch), logits


class _LanguageModel(_TokenScores):
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: SynthesizerConfig) -> None:
        super().__init__(config)
        self.model = SynthesizerModel(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=config.lm_head_bias)
        self._init_weights(self.lm_head)
        self.post_init()


class _GenerationMixin(GenerationMixin):
    config: SynthesizerConfig
    model: Any

    def generate(self, inputs: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        """transformers' `generate()`; ValueError for a batch without rows, or prompts without tokens."""
        for given in (inputs, kwargs.get("input_ids"), kwargs.get("inputs_embeds")):
            needed = 1 if self.config.is_encoder_decoder else 2
            if given is not None and 0 in given.shape[:needed]:
                raise ValueError(
                    f"got inputs of shape {tuple(given.shape)}; expected at least one row, and in the prompts of a "
                    "causal model at least one token, such as bos_token_id"
                )
        parent: Any = super()
        return parent.generate(inputs, *args, **kwargs)

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> Any:
        """NotImplementedError: a paged cache of transformers has keys for all heads, and an order of its own."""
        raise NotImplementedError("got generate_batch(); expected synthetic_attention.generate(model, …) or generate()")

    # `generate()` accepts `inputs_embeds` only if it is among these arguments. The tokenizer is for `stop_strings`.
    def prepare_inputs_for_generation(
        self, input_ids: Tensor, *args: Any, inputs_embeds: Tensor | None = None, tokenizer: Any = None, **kwargs: Any
    ) -> Any:
        """The input of one step of `generate()`; ValueError if the sequence of a causal model is full."""
        if not self.config.is_encoder_decoder:
            # A prompt of embeddings is not among these ids: then `forward` raises, one token later.
            self.model.decoder.check_length(input_ids.shape[1] + 1)
        parent: Any = super()
        return parent.prepare_inputs_for_generation(input_ids, *args, inputs_embeds=inputs_embeds, **kwargs)


class SynthesizerForCausalLM(_LanguageModel, _GenerationMixin):
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

    def __init__(self, config: SynthesizerConfig) -> None:
        super().__init__(config.with_one_stack(is_decoder=True))

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
        num_items_in_batch: Tensor | int | None = None,
        smoothing: float = 0.0,
        token_type_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Predict the token after each.

        Args:
            labels: (B, T), usually the input itself: the prediction after a token is scored with the label of the next
                real token of its row or segment, unless that label is −100. Without any label to score the loss is 0.
            logits_to_keep: return the logits of this many tokens, the last ones, 0 for all; or of the slots in this
                tensor (n,). The loss is of all.
            num_items_in_batch: divides the summed loss; by default the number of scored labels.
            smoothing: label smoothing of the loss, in training and evaluation alike.
            kwargs: `shift_labels` (B, T), the label of each prediction, instead of `labels`.

        The other arguments, keywords included, are those of `SynthesizerModel`.

        Returns:
            The loss if there are labels, logits (B, T, V) unless the loss is fused (see `fused_loss` in the
            configuration), cache, states and weights.

        Raises:
            ValueError: a sequence that is too long, a mask or labels that do not fit, or inputs missing or twice.
        """
        x: Any = input_ids if inputs_embeds is None else inputs_embeds
        # Labels follow the segments. Without labels the model reads the positions.
        if labels is not None and segment_ids is None and x is not None:
            segment_ids, attention_mask = read_positions(position_ids, x, attention_mask, past_key_values)
        # Trainer expects all arguments with "label" in their names in every batch.
        targets: Tensor | None = kwargs.pop("shift_labels", None)
        if labels is not None and targets is None and x is not None:
            check_labels(labels, x.shape[:2])
            targets, _ = _next_tokens(labels, attention_mask, segment_ids)
        scored = self._scored_rows(targets)
        outputs: Any = self.model(
            input_ids,
            attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            segment_ids=segment_ids,
            token_type_ids=token_type_ids,
            use_cache=use_cache if targets is None else bool(use_cache),
            return_dict=True,
            **kwargs,
        )
        hidden = outputs.last_hidden_state
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        if targets is None:
            hidden = hidden[:, kept]
        loss, logits = self._loss_and_logits(hidden, targets, scored, smoothing, num_items_in_batch)
        if targets is not None and logits is not None:
            logits = logits[:, kept]
        return CausalLMOutputWithPast(loss, logits, outputs.past_key_values, outputs.hidden_states, outputs.attentions)

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


def _next_tokens(labels: Tensor, attention_mask: Tensor | None, segment_ids: Tensor | None) -> tuple[Tensor, Tensor]:
    """(B, T): label and slot of the token that follows each token in its row or segment; −100 and T where none does."""
    batch, length = labels.shape
    slots = torch.arange(length, device=labels.device).expand(batch, -1)
    following = slots + 1
    if segment_ids is not None:
        continues = (segment_ids[:, 1:] == segment_ids[:, :-1]) & (segment_ids[:, 1:] != 0)
        following = following.where(F.pad(continues, (0, 1)), length)
    elif attention_mask is not None:
        check_mask(attention_mask, batch, max(length, attention_mask.shape[-1]))
        real = attention_mask[:, -length:].bool()
        # The first real slot from each slot on.
        real_slots = slots.where(real, length).flip(1).cummin(1).values.flip(1)
        following = F.pad(real_slots[:, 1:], (0, 1), value=length).where(real, length)
    return F.pad(labels, (0, 1), value=IGNORED).gather(1, following), following


class SynthesizerForConditionalGeneration(_LanguageModel, _GenerationMixin):
    """An encoder-decoder Transformer with synthesized self-attention and an output projection.

    Example:
        >>> config = SynthesizerConfig(vocab_size=100, d_model=16, num_heads=2, d_ff=32, num_layers=2)
        >>> model = SynthesizerForConditionalGeneration(config).eval()
        >>> model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=4).shape[0]
        1

    Raises:
        ValueError: the configuration is for a model with one stack.
    """

    def __init__(self, config: SynthesizerConfig) -> None:
        if not config.is_encoder_decoder:
            raise ValueError("got is_encoder_decoder=False; expected the configuration of an encoder-decoder")
        super().__init__(config)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Labels (B, T) shifted right: the decoder's start token comes first, ignored labels become padding."""
        start, pad = self.config.decoder_start_token_id, self.config.pad_token_id
        if start is None or pad is None:
            given = f"decoder_start_token_id={start} and pad_token_id={pad}"
            raise ValueError(f"got {given}; expected both, to make the decoder's input from labels")
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
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        smoothing: float = 0.0,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Encode, decode, and score.

        Args:
            decoder_input_ids: (B, T), by default the labels shifted right.
            labels: (B, T), padded on the right with −100, which is not scored.
            num_items_in_batch, smoothing: as in `SynthesizerForCausalLM`.

        The other arguments, keywords included, are those of `SynthesizerModel`.

        Returns:
            The loss if there are labels, logits (B, T, vocab_size) unless the loss is fused (see `fused_loss` in the
            configuration), cache, states and weights.

        Raises:
            ValueError: a sequence that is too long, a mask that does not fit, or inputs missing or twice.
        """
        if labels is not None and decoder_input_ids is None and kwargs.get("decoder_inputs_embeds") is None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        scored = self._scored_rows(labels)
        decoder: Any = self.model.decoder
        # Unless more is looked at than the loss: a cache, states, weights, or rows inside of the decoder.
        keeps = use_cache or past_key_values is not None or any(self.model.recorded(kwargs).values())
        if scored is not None and labels is not None and not keeps and decoder.leaves_out_padding:
            x: Any = kwargs.get("decoder_inputs_embeds") if decoder_input_ids is None else decoder_input_ids
            check_labels(labels, x.shape[:2])
            given = None if decoder_attention_mask is None else read_mask(decoder_attention_mask, *labels.shape)[0]
            decoder_attention_mask = up_to_last_scored(labels) if given is None else up_to_last_scored(labels) & given
        outputs: Any = self.model(
            input_ids,
            attention_mask,
            decoder_input_ids,
            decoder_attention_mask,
            encoder_outputs,
            past_key_values,
            use_cache=use_cache if labels is None else bool(use_cache),
            return_dict=True,
            **kwargs,
        )
        rest = {name: value for name, value in outputs.items() if name != "last_hidden_state"}
        hidden = outputs.last_hidden_state
        loss, logits = self._loss_and_logits(hidden, labels, scored, smoothing, num_items_in_batch)
        return Seq2SeqLMOutput(loss=loss, logits=logits, **rest)


class PerToken(_TokenScores):
    """The `forward` of heads with one prediction per token."""

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
        position_ids: Tensor | None = None,
        segment_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> MaskedLMOutput | TokenClassifierOutput:
        """Predict every token, or its class.

        Args:
            labels: (B, T), −100 where the token is not scored.
            num_items_in_batch, smoothing: as in `SynthesizerForCausalLM`.

        The other arguments, keywords included, are those of `SynthesizerModel`.

        Returns:
            The loss if there are labels; logits (B, T, V) of a language model, unless the loss is fused (see
            `fused_loss` in the configuration), or (B, T, N); states and weights.

        Raises:
            ValueError: a sequence that is too long, a mask or labels that do not fit, or inputs missing or twice.
        """
        given: dict[str, Any] = {"position_ids": position_ids, "segment_ids": segment_ids, "use_cache": False}
        given |= {"inputs_embeds": inputs_embeds, "token_type_ids": token_type_ids, **kwargs}
        scored, model = self._scored_rows(labels), cast(SynthesizerModel, self.model)
        outputs: Any = model(input_ids, attention_mask, return_dict=True, **given)
        loss, logits = self._loss_and_logits(outputs.last_hidden_state, labels, scored, smoothing, num_items_in_batch)
        output: Any = MaskedLMOutput if isinstance(self, _LanguageModel) else TokenClassifierOutput
        return output(loss, logits, outputs.hidden_states, outputs.attentions)


class SynthesizerForMaskedLM(PerToken, _LanguageModel):
    """A bidirectional stack with an output projection: BERT's pretraining with synthesized attention.

    From a configuration or checkpoint of an encoder-decoder it takes the encoder, and the output projection.

    Raises:
        ValueError: the configuration is for a causal stack.
    """

    def __init__(self, config: SynthesizerConfig) -> None:
        super().__init__(config.with_one_stack(is_decoder=False))
        self.transform = hidden_layer(config, config.lm_head_activation, make_norm(config))

    def _loss_and_logits(self, hidden: Tensor, *arguments: Any) -> tuple[Tensor | None, Tensor | None]:
        return super()._loss_and_logits(hidden if self.transform is None else self.transform(hidden), *arguments)


def hidden_layer(config: SynthesizerConfig, activation: str | None, norm: nn.Module | None = None) -> nn.Module | None:
    """A linear layer over d_model, an activation, and a norm or none; None without an activation."""
    if activation is None:
        return None
    layers = {"dense": nn.Linear(config.d_model, config.d_model), "activation": ACT2FN[activation], "norm": norm}
    layer = nn.Sequential(OrderedDict((name, part) for name, part in layers.items() if part is not None))
    init_linears(layer, config.initializer_factor)
    return layer
