"""What the models that generate text share: the loss of their output projection, and how they meet `generate()`."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import Cache, GenerationMixin

from ..linear import is_plain
from .cache import mask_for_static_cache
from .configuration import SynthesizerConfig
from .loss import IGNORED, cross_entropy, linear_cross_entropy

__all__ = ["SynthesizerGenerationMixin"]


class SynthesizerGenerationMixin(GenerationMixin):
    """`generate()`, and the loss of the output projection `lm_head`."""

    config: SynthesizerConfig
    lm_head: nn.Linear
    training: bool
    # The loss divides by `num_items_in_batch`, so gradient accumulation scales as if there were one large batch.
    accepts_loss_kwargs = True
    _can_compile_fullgraph = True

    @staticmethod
    def create_masks_for_generate(
        *, attention_mask: Tensor | None = None, past_key_values: Cache, **unused: Any
    ) -> Tensor | None:
        """What `generate()` prepares for a cache of fixed size: a mask (B, S) of all its slots, or None."""
        return mask_for_static_cache(attention_mask, past_key_values)

    def _wants_cache(self, use_cache: bool | None, scored: bool) -> bool:
        """Whether to make a cache where none is given."""
        if use_cache is None:
            return self.config.use_cache and not self.training and not scored
        return use_cache

    def _wants_logits(self, return_logits: bool | None, scored: bool) -> bool:
        """Whether the output has logits: by default not in training with labels, where the loss does without them."""
        if return_logits is None:
            return not (scored and self.training and self.config.fused_loss)
        return return_logits

    def _head_is_a_product(self) -> bool:
        """Whether `lm_head` is its weight and nothing else, so that a loss may use that in its place."""
        return is_plain(self.lm_head) and self.lm_head.bias is None

    def _loss(self, hidden: Tensor, logits: Tensor | None, targets: Tensor, items: Tensor | int | None) -> Tensor:
        """Mean over the targets not ignored; with `items`, the share of this batch in a mean over that many."""
        smoothing = self.config.label_smoothing if self.training else 0.0
        if logits is None and not self._head_is_a_product():
            logits = self.lm_head(hidden)
        if logits is None:
            loss = linear_cross_entropy(hidden, self.lm_head.weight, targets, smoothing)
        else:
            loss = cross_entropy(logits, targets, smoothing)
        if items is None:
            items = (targets != IGNORED).sum().clamp_min(1)
        return loss / items
