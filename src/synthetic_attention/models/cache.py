"""Cache layers of self-attention: values, and keys only where a function takes dot products.

A layer without dot products needs no keys at all. It calls `update` with keys of width 0, and these classes count the
values. Defining them registers them under the names that `SynthesizerConfig.layer_types` uses, so every cache that
transformers builds from the configuration has them. The cross-attention half of an `EncoderDecoderCache` is built from
the same names and holds real keys: nothing here forbids that.

Shape legend: B batch, H heads, S slots, T new tokens, K width of a key, D width of a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, EncoderDecoderCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, StaticLayer

__all__ = [
    "KEYS_AND_VALUES",
    "VALUES_ONLY",
    "DynamicKeysValuesLayer",
    "DynamicValuesLayer",
    "FilledSlots",
    "StaticKeysValuesLayer",
    "StaticSlots",
    "StaticValuesLayer",
    "cache_bytes",
    "check_layers",
    "mask_for_static_cache",
]

# What the configuration calls the layers with keys, and those that need none.
KEYS_AND_VALUES = "synthesizer_keys_and_values"
VALUES_ONLY = "synthesizer_values"

# A buffer that is full grows by an eighth, and by at least this many slots.
_SPARE_SLOTS = 64
# On a CPU beams are put into order this many bytes at a time, which stay in the processor's cache.
_REORDERED_BYTES = 2**21


class DynamicKeysValuesLayer(DynamicLayer):
    """Grows into buffers with room to spare, where transformers' copies all that is cached in each step.

    `keys` and `values` are views of the filled slots. Whatever replaces them (offloading, a selection of rows) is
    copied into a new buffer with the next tokens. A graph that wants gradients shares nothing: there, it concatenates.
    """

    _layer_type = KEYS_AND_VALUES

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._buffers: list[Tensor | None] = [None, None]

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Note dtype, device and shape of keys (B, H, T, K) and values (B, H, T, D)."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
        self._buffers = [None, None]
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Store keys (B, H, T, K) and values (B, H, T, D); return those of all tokens so far."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        self.keys = self._append(0, self.keys, key_states)
        self.values = self._append(1, self.values, value_states)
        return self.keys, self.values

    def get_seq_length(self) -> int:
        """Tokens in the cache: the number of values, since keys may have no elements."""
        return 0 if not self.is_initialized or self.values is None else int(self.values.shape[-2])

    def reset(self) -> None:
        """Forget all tokens."""
        super().reset()
        self._buffers = [None, None]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row b becomes what row beam_idx[b] was."""
        if self.keys is None or self.values is None:
            return
        self.keys = self._reorder(0, self.keys, beam_idx)
        self.values = self._reorder(1, self.values, beam_idx)

    def _append(self, which: int, filled: Tensor, new: Tensor) -> Tensor:
        length = filled.shape[-2]
        total = length + new.shape[-2]
        if torch.compiler.is_compiling() or (torch.is_grad_enabled() and (new.requires_grad or filled.requires_grad)):
            return torch.cat([filled, new], dim=-2)
        if not new.shape[-1]:
            return new.new_empty(*new.shape[:2], total, 0)
        buffer = self._buffers[which]
        if buffer is None or not _in_place(buffer, filled) or buffer.shape[-2] < total:
            # The first tokens get no spare room: cross-attention never adds to them.
            spare = max(_SPARE_SLOTS, total // 8) if length else 0
            buffer = new.new_empty(*new.shape[:2], total + spare, new.shape[-1])
            buffer[:, :, :length] = filled
            self._buffers[which] = buffer
        buffer[:, :, length:total] = new
        return buffer[:, :, :total]

    def _reorder(self, which: int, filled: Tensor, beams: Tensor) -> Tensor:
        buffer, beams = self._buffers[which], beams.to(filled.device)
        if buffer is None or not _in_place(buffer, filled) or len(beams) != len(filled):
            return filled.index_select(0, beams)
        step = filled.shape[-2]
        if filled.device.type == "cpu" and filled.numel():
            step = max(1, step * _REORDERED_BYTES // filled.nbytes)
        for slots in filled.split(step, dim=-2):
            slots.copy_(slots.index_select(0, beams))
        return filled


def _in_place(buffer: Tensor, filled: Tensor) -> bool:
    """Whether `filled` is still the first slots of the buffer, and the buffer may be written to."""
    mine = filled.data_ptr() == buffer.data_ptr() and filled.shape[:2] == buffer.shape[:2]
    return mine and (torch.is_inference_mode_enabled() or not buffer.is_inference())


class DynamicValuesLayer(DynamicKeysValuesLayer):
    """The same with keys of width 0."""

    _layer_type = VALUES_ONLY


class StaticKeysValuesLayer(StaticLayer):
    """Of fixed size, allocated at the first update."""

    _layer_type = KEYS_AND_VALUES


class StaticValuesLayer(StaticLayer):
    """The same with keys of width 0."""

    _layer_type = VALUES_ONLY

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate all slots for keys (B, H, T, K) and values (B, H, T, D)."""
        # Allocated ahead of the first update, with one tensor as the pattern of both.
        if key_states is value_states:
            key_states = value_states[..., :0]
        super().lazy_initialization(key_states, value_states)


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
                "configuration: DynamicCache(config=model.config), or for an encoder-decoder "
                "EncoderDecoderCache(*(DynamicCache(config=model.config) for _ in range(2)))"
            )


def cache_bytes(cache: Cache) -> int:
    """Bytes of the keys and values of all tokens in a cache, spare room not counted; of any model, not only ours."""
    if isinstance(cache, EncoderDecoderCache):
        return cache_bytes(cache.self_attention_cache) + cache_bytes(cache.cross_attention_cache)
    layers = [layer for layer in cache.layers if isinstance(layer, CacheLayerMixin)]
    tensors = [tensor for layer in layers for tensor in (layer.keys, layer.values)]
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


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


class StaticSlots:
    """A cache of fixed size in compiled code, which hands out all its slots: how many are filled is data there.

    Args:
        cache: the self-attention cache.
        slots: (T,), where this step's tokens stand.
    """

    def __init__(self, cache: Cache, slots: Tensor) -> None:
        self.cache, self.slots = cache, slots

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *args: Any) -> tuple[Tensor, Tensor]:
        """Store keys (B, H, T, K) and values (B, H, T, D); return those of all slots, S of them."""
        return self.cache.update(keys, values, layer_idx, *args)


def mask_for_static_cache(attention_mask: Tensor | None, cache: Cache) -> Tensor | None:
    """The mask (B, filled) as one for all slots of a cache of fixed size, so that no step has another shape.

    None where no token is masked: then rows share their positions, which the shared forms of logits profit from.
    """
    if attention_mask is None or bool(attention_mask.all()):
        return None
    missing = cache.get_max_length() - attention_mask.shape[1]
    return torch.nn.functional.pad(attention_mask, (0, missing)) if missing > 0 else attention_mask
