"""The encoder-decoder model with an output projection, for translation, summarization and dialogue."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import Cache, GenerationMixin
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.utils.generic import can_return_tuple

from .configuration import SynthesizerConfig
from .loss import IGNORED, loss_and_logits
from .modeling import SynthesizerModel, make_lm_head
from .pretrained import SynthesizerPreTrainedModel

__all__ = ["SynthesizerForConditionalGeneration"]


class SynthesizerForConditionalGeneration(SynthesizerPreTrainedModel, GenerationMixin):
    """An encoder-decoder Transformer with synthesized self-attention and an output projection.

    Example:
        >>> config = SynthesizerConfig(vocab_size=100, d_model=16, num_heads=2, d_ff=32, num_layers=2)
        >>> model = SynthesizerForConditionalGeneration(config).eval()
        >>> model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=4).shape[0]
        1

    Raises:
        ValueError: the configuration is for a model with one stack.
    """

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: SynthesizerConfig) -> None:
        if not config.is_encoder_decoder:
            raise ValueError("got is_encoder_decoder=False; expected the configuration of an encoder-decoder")
        super().__init__(config)
        self.model = SynthesizerModel(config)
        self.lm_head = make_lm_head(config)
        self.post_init()

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
            num_items_in_batch: divides the summed loss; by default the number of labels.
            smoothing: label smoothing of the loss, in training and evaluation alike.

        The other arguments, keywords included, are those of `SynthesizerModel`.

        Returns:
            The loss if there are labels, logits (B, T, vocab_size) unless the loss is fused (see `fused_loss` in the
            configuration), cache, states and weights.

        Raises:
            ValueError: a sequence that is too long, a mask that does not fit, or inputs missing or twice.
        """
        if labels is not None and decoder_input_ids is None and kwargs.get("decoder_inputs_embeds") is None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
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
        loss, logits = loss_and_logits(self, outputs.last_hidden_state, labels, smoothing, num_items_in_batch)
        return Seq2SeqLMOutput(loss=loss, logits=logits, **rest)
