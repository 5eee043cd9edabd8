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
from transformers.cache_utils import (
    DYNAMIC_LAYER_TYPE_MAPPING,
    STATIC_LAYER_TYPE_MAPPING,
    DynamicLayer,
    StaticLayer,
)

# transformers' name of a layer with a key for each value, and our name of one without keys.
KEYS_AND_VALUES = "full_attention"
VALUES_ONLY = "synthesizer_values"

# A full buffer grows by an eighth, and by at least this many slots.
_SPARE_SLOTS = 64
# On a CPU beams are reordered this many bytes at a time, which stay in the processor's cache.
_REORDERED_BYTES = 2**21


class DynamicKeysValuesLayer(DynamicLayer):
    """Grows within buffers that have spare slots; transformers' own layer copies the whole cache in each step.

    `keys` and `values` are views of the filled slots. If something replaces them (a crop, offloading, a selection of
    rows), the next tokens copy them into a new buffer. In grad mode the layer concatenates, as nothing may be
    overwritten.
    """

    # By "keys" and "values": a buffer, and the view of its filled slots.
    _buffers: dict[str, tuple[Tensor, Tensor]]

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Note dtype, device and shape of keys (B, H, T, K) and values (B, H, T, D)."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
        self._buffers = {}
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Store keys (B, H, T, K) and values (B, H, T, D); return all tokens' so far."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        self.keys = self._append("keys", self.keys, key_states)
        self.values = self._append("values", self.values, value_states)
        return self.keys, self.values

    def get_seq_length(self) -> int:
        """Tokens in the cache: the number of values, since there may be no keys."""
        return self.values.shape[-2] if self.is_initialized and self.values is not None else 0

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row b becomes what row beam_idx[b] was."""
        if self.keys is not None and self.values is not None:
            self.keys = self._reorder("keys", self.keys, beam_idx)
            self.values = self._reorder("values", self.values, beam_idx)

    def _append(self, name: str, filled: Tensor, new: Tensor) -> Tensor:
        batch, heads, added, width = new.shape
        length = filled.shape[-2]
        total = length + added
        if not heads:
            return new.new_empty(batch, 0, total, width)
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return torch.cat([filled, new], dim=-2)
        buffer = self._buffer_of(name, filled)
        if buffer is None or buffer.shape[-2] < total:
            # No spare slots for the first tokens: cross-attention never adds any.
            spare = max(_SPARE_SLOTS, total // 8) if length else 0
            buffer = new.new_empty(batch, heads, total + spare, width)
            buffer[:, :, :length] = filled
        buffer[:, :, length:total] = new
        filled = buffer[:, :, :total]
        self._buffers[name] = buffer, filled
        return filled

    def _buffer_of(self, name: str, filled: Tensor) -> Tensor | None:
        """The buffer that `filled` is a view of, if nothing has replaced it and the buffer may be written to."""
        if name not in self._buffers:
            return None
        buffer, view = self._buffers[name]
        is_locked = buffer.is_inference() and not torch.is_inference_mode_enabled()
        return None if is_locked or view is not filled else buffer

    def _reorder(self, name: str, filled: Tensor, beams: Tensor) -> Tensor:
        beams = beams.to(filled.device)
        if self._buffer_of(name, filled) is None or len(beams) != len(filled):
            return filled.index_select(0, beams)
        step = filled.shape[-2]
        if filled.device.type == "cpu":
            step = max(1, step * _REORDERED_BYTES // max(1, filled.nbytes))
        for slots in filled.split(step, dim=-2):
            slots.copy_(slots.index_select(0, beams))
        return filled


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
    name = f"synthesizer_keys_{key_heads}" if key_heads else VALUES_ONLY
    DYNAMIC_LAYER_TYPE_MAPPING[name] = DynamicKeysValuesLayer
    STATIC_LAYER_TYPE_MAPPING[name] = partial(StaticValuesLayer, key_heads=key_heads)  # type: ignore[assignment]
    return name


def adapt_layers(cache: Cache, layer_types: Sequence[str]) -> None:
    """Replace transformers' dynamic layers without tokens by ours. ValueError for others that count keys."""
    if isinstance(cache, EncoderDecoderCache):
        for half in (cache.self_attention_cache, cache.cross_attention_cache):
            adapt_layers(half, layer_types)
        return
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
    """Bytes of the keys and values in the cache of any model, without spare slots."""
    if isinstance(cache, EncoderDecoderCache):
        return cache_bytes(cache.self_attention_cache) + cache_bytes(cache.cross_attention_cache)
    tensors = [getattr(layer, name, None) for layer in cache.layers for name in ("keys", "values")]
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)
