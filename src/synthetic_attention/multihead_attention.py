"""SynthesizerMultiheadAttention: a SynthesizerAttention in the place of an `nn.MultiheadAttention`.

Shape legend: B batch, L tokens, E embed_dim, H heads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .attention import SynthesizerAttention
from .layout import is_transformed
from .synthesizers import SynthesizerOptions
from .validation import check_size


class _NotFused(Tensor):
    """A tensor that PyTorch's fused encoder does not take: it overrides functions, as all subclasses do."""


class SynthesizerMultiheadAttention(nn.Module):
    """Self-attention with the arguments of `nn.MultiheadAttention`, for encoders and decoders built with that.

        encoder.layers[0].self_attn = SynthesizerMultiheadAttention(
            512, 8, batch_first=True, synthesizer="random", max_length=256
        )

    A padded sequence gives what it gives alone. Outputs at padded tokens are zeros, at tokens that may see no key the
    bias of `out_proj`. `nn.TransformerEncoder` takes no fused path through this layer and gives it no nested tensors.

    Args:
        embed_dim, num_heads, dropout, bias, batch_first, device, dtype: as of `nn.MultiheadAttention`.
        add_bias_kv, add_zero_attn, kdim, vdim: the defaults only.
        synthesizer, max_length, synthesizer_options: as of `SynthesizerAttention`.

    Attributes:
        attention: the `SynthesizerAttention`.

    Raises:
        ValueError: an option that this layer lacks, and as `SynthesizerAttention` does.
    """

    # What `nn.TransformerEncoder` and its layers look at before they take their fused path.
    _qkv_same_embed_dim = False
    in_proj_weight = in_proj_bias = torch.empty(0).as_subclass(_NotFused)

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        synthesizer: str = "random+vanilla",
        max_length: int | None = None,
        synthesizer_options: SynthesizerOptions | None = None,
    ) -> None:
        super().__init__()
        check_size("embed_dim", embed_dim)
        if add_bias_kv or add_zero_attn or any(size not in (None, embed_dim) for size in (kdim, vdim)):
            raise ValueError(
                f"got add_bias_kv={add_bias_kv}, add_zero_attn={add_zero_attn}, kdim={kdim}, vdim={vdim}; expected "
                "none of them: this layer is self-attention of one width"
            )
        self.embed_dim, self.num_heads, self.batch_first = embed_dim, num_heads, batch_first
        self.attention = SynthesizerAttention(
            embed_dim,
            num_heads,
            synthesizer,
            max_length,
            bias=bias,
            dropout=dropout,
            synthesizer_options=synthesizer_options,
            device=device,
            dtype=dtype,
        )

    @classmethod
    def from_multihead_attention(
        cls, mha: nn.MultiheadAttention, synthesizer: str = "vanilla", max_length: int | None = None, **arguments: Any
    ) -> SynthesizerMultiheadAttention:
        """`SynthesizerAttention.from_multihead_attention` of the same arguments, to be called as `mha` is."""
        attention = SynthesizerAttention.from_multihead_attention(mha, synthesizer, max_length, **arguments)
        # The layer of this one is replaced.
        layer = cls(mha.embed_dim, mha.num_heads, batch_first=mha.batch_first, device="meta", synthesizer="vanilla")
        layer.attention = attention
        return layer.train(mha.training)

    def extend(self, max_length: int) -> None:
        """`SynthesizerAttention.extend`."""
        self.attention.extend(max_length)

    @property
    def out_proj(self) -> nn.Module:
        """The output projection."""
        return self.attention.out_proj

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend.

        Args:
            query: (L, B, E), (B, L, E) with `batch_first`, or (L, E).
            key: the query itself.
            value: the query, or another tensor of its shape.
            key_padding_mask: (B, L) or (L,): True, or −inf (any number but 0), at padding.
            need_weights: return the weights too, through the whole matrix.
            attn_mask: (L, L) or (B·H, L, L): True where a key may not be seen, or floats that are added to the logits.
            average_attn_weights: return the mean of the weights over the heads.
            is_causal: `attn_mask` is the causal mask, which then need not be given.

        Returns:
            The output, of the shape of the query, and the weights (B, L, L), or (B, H, L, L) if not averaged, or None.

        Raises:
            ValueError: another key than the query, nested tensors, integer masks, or shapes that do not fit.
        """
        if query.is_nested:
            raise ValueError("got a nested tensor; expected a padded one and a key_padding_mask")
        # A key that hooks or checkpoints made of the query is another tensor, but the same in these.
        facts: Any = (Tensor.data_ptr, Tensor.size, Tensor.stride, lambda x: x.requires_grad)
        if key is not query and (is_transformed() or any(fact(key) != fact(query) for fact in facts)):
            raise ValueError("got a key that is not the query; expected self-attention: layer(x, x, x)")
        swap = query.dim() == 3 and not self.batch_first
        x, v = (each.transpose(0, 1) if swap else each for each in (query, value))
        if (mask := key_padding_mask) is not None:
            got, wanted = tuple(mask.shape), tuple(x.shape[:-1])
            if got != wanted or not (mask.dtype == torch.bool or mask.is_floating_point()):
                raise ValueError(f"got {mask.dtype} key_padding_mask {got}; expected bools {wanted}, True at padding")
        y = self.attention(
            x,
            None if mask is None else mask == 0,
            None if is_causal or attn_mask is None else self._bias(attn_mask, x),
            is_causal,
            value=None if value is query else v,
            need_weights=need_weights,
        )
        y, weights = y if need_weights else (y, None)
        if weights is not None and average_attn_weights:
            weights = weights.mean(dim=-3)
        return y.transpose(0, 1) if swap else y, weights

    def _bias(self, attn_mask: Tensor, x: Tensor) -> Tensor:
        """The mask as what is added to the logits, (L, L), (H, L, L) for one sequence or (B, H, L, L)."""
        length, heads = x.shape[-2], x.shape[:-2].numel() * self.num_heads
        if attn_mask.shape not in ((length, length), (heads, length, length)):
            sizes = f"({length}, {length}) or ({heads}, {length}, {length})"
            raise ValueError(f"got attn_mask of shape {tuple(attn_mask.shape)}; expected {sizes}")
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=x.dtype).masked_fill(attn_mask, -torch.inf)
        return attn_mask if attn_mask.dim() < 3 or x.dim() < 3 else attn_mask.unflatten(0, (len(x), self.num_heads))
