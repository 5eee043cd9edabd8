"""Cache layers of self-attention: values, and keys only where a function takes dot products.

A head without dot products needs no keys. Layers call `update` with keys for fewer heads than values, or for none, and
these classes count the values.
`SynthesizerConfig.layer_types` names what each layer caches, and transformers builds every cache from these names. The
cross-attention half of an `EncoderDecoderCache` is built from the same names and holds real keys.

Shape legend: B batch, H heads, S slots, T new tokens, K width of a key, D width of a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, EncoderDecoderCache
from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING, STATIC_LAYER_TYPE_MAPPING, DynamicLayer, StaticLayer

# transformers' name of a layer with a key for each value.
KEYS_AND_VALUES = "full_attention"


class DynamicKeysValuesLayer(DynamicLayer):
    """A growing cache layer that counts its values: transformers' own layer counts keys; there may be none."""

    def get_seq_length(self) -> int:
        """Tokens in the cache."""
        # Ahead of the first tokens transformers has None, then a tensor of one axis.
        return 0 if self.values is None or self.values.dim() == 1 else self.values.shape[-2]


class StaticValuesLayer(StaticLayer):
    """A static cache layer with keys for fewer heads, or for none: `key_heads`, if it is allocated ahead of tokens."""

    def __init__(self, max_cache_len: int, key_heads: int = 0, **kwargs: Any) -> None:
        super().__init__(max_cache_len, **kwargs)
        self.key_heads = key_heads

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate all slots for keys (B, any, T, K) and values (B, H, T, D)."""
        super().lazy_initialization(value_states[..., :0], value_states)
        # Ahead of the first tokens one tensor is the pattern of both.
        heads = self.key_heads if key_states is value_states else key_states.shape[1]
        self.keys = value_states.new_zeros(key_states.shape[0], heads, self.max_cache_len, key_states.shape[-1])
        if not torch.compiler.is_compiling():
            torch._dynamo.mark_static_address(self.keys)


def layer_type(key_heads: int, num_heads: int) -> str:
    """The name of a layer with so many keys for each token, under which transformers finds its classes from now on."""
    if key_heads == num_heads:
        return KEYS_AND_VALUES
    name = f"synthesizer_keys_{key_heads}"
    DYNAMIC_LAYER_TYPE_MAPPING[name] = DynamicKeysValuesLayer
    STATIC_LAYER_TYPE_MAPPING[name] = partial(StaticValuesLayer, key_heads=key_heads)  # type: ignore[assignment]
    return name


def adapt_layers(cache: Cache, layer_types: Sequence[str]) -> None:
    """Replace transformers' dynamic layers without tokens by ours. ValueError for others that count keys."""
    for index, kind in enumerate(layer_types):
        layer = cache.layers[index] if index < len(cache.layers) else None
        is_stock = (cache.layer_class_to_replicate if layer is None else type(layer)) is DynamicLayer
        if is_stock and not getattr(layer, "is_initialized", False) and not torch.compiler.is_compiling():
            cache.layers[index : index + 1] = [DynamicKeysValuesLayer()]
        elif kind != KEYS_AND_VALUES and not isinstance(layer, DynamicKeysValuesLayer | StaticValuesLayer):
            found = "nothing" if layer is None else type(layer).__name__
            raise ValueError(
                f"got a cache with {found} for layer {index}, which caches fewer keys than values; expected one "
                "made from the configuration: DynamicCache(config=model.config). Prefix tuning, which makes keys "
                "for all heads, needs vanilla in every head; others have LoRA or prompt tuning"
            )


def cache_bytes(cache: Cache) -> int:
    """Bytes of the keys and values in the cache of any model."""
    if isinstance(cache, EncoderDecoderCache):
        return cache_bytes(cache.self_attention_cache) + cache_bytes(cache.cross_attention_cache)
    tensors = [getattr(layer, name, None) for layer in cache.layers for name in ("keys", "values")]
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)
