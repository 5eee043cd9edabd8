"""Cache layers of self-attention whose logits come from positions or from the query's own token: values only.

A layer without dot products needs no keys at all. It calls `update` with keys of width 0, and these classes count the
values. Defining them registers them under the name that `SynthesizerConfig.layer_types` uses, so every cache that
transformers builds from the configuration has them. The cross-attention half of an `EncoderDecoderCache` is built from
the same names and holds real keys: nothing here forbids that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from transformers import Cache
from transformers.cache_utils import DynamicLayer, StaticLayer

__all__ = ["VALUES_ONLY", "DynamicValuesLayer", "FilledSlots", "StaticValuesLayer", "check_layers"]

# What the configuration calls the layers that need no keys.
VALUES_ONLY = "synthesizer_values"


class DynamicValuesLayer(DynamicLayer):
    """Grows by concatenation; its length is the number of values, since its keys have no elements."""

    _layer_type = VALUES_ONLY

    def get_seq_length(self) -> int:
        """Tokens in the cache."""
        if not self.is_initialized or self.values is None or self.values.dim() < 2:
            return 0
        return int(self.values.shape[-2])


class StaticValuesLayer(StaticLayer):
    """Of fixed size, allocated at the first update."""

    _layer_type = VALUES_ONLY


def check_layers(cache: Cache, layer_types: Sequence[str]) -> None:
    """Check that layers without keys are cached by a class that counts values.

    Raises:
        ValueError: they are not, as in a `DynamicCache()` made without the configuration: it would find itself empty.
    """
    for index, kind in enumerate(layer_types):
        layer = cache.layers[index] if index < len(cache.layers) else None
        if kind == VALUES_ONLY and not isinstance(layer, DynamicValuesLayer | StaticValuesLayer):
            found = "no layer" if layer is None else type(layer).__name__
            raise ValueError(
                f"got a cache with {found} for layer {index}, which caches values only; expected one made from the "
                "configuration, as in EncoderDecoderCache(*(DynamicCache(config=model.config) for _ in range(2)))"
            )


class FilledSlots:
    """A cache of fixed size that hands out only the slots filled so far, as a growing one does.

    Args:
        cache: the self-attention cache.
        length: slots that are filled once this step's tokens are stored.
    """

    def __init__(self, cache: Cache, length: int) -> None:
        self.cache, self.length = cache, length

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *args: Any) -> tuple[Tensor, Tensor]:
        """Store keys (B, H, T, K) and values (B, H, T, D); return those of all filled slots."""
        keys, values = self.cache.update(keys, values, layer_idx, *args)
        return keys[:, :, : self.length], values[:, :, : self.length]
