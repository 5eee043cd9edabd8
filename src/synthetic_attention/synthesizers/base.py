"""What a synthesizing function is, and the registry of them.

Shape legend: B batch, H heads, T rows (new tokens), S columns (keys in use), K width of a head, N maximum length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol, TypeVar, cast

import torch
from torch import Tensor, nn

from ..logits import Logits

__all__ = ["REGISTRY", "Dimensions", "Options", "Span", "SynthesizingFunction", "register"]


@dataclass(frozen=True)
class Dimensions:
    """Sizes that the layer hands to its function.

    Attributes:
        num_heads: H.
        head_dim: K.
        max_length: N, or None where the layer has no maximum.
        bias: whether the layer's projections have biases; the functions' own follow it by default.
    """

    num_heads: int
    head_dim: int
    max_length: int | None
    bias: bool

    @property
    def inner_dim(self) -> int:
        return self.num_heads * self.head_dim


@dataclass(frozen=True, eq=False)
class Span:
    """Which rows and columns of the logits are asked for.

    Attributes:
        rows: T, the new tokens.
        columns: S, the keys in use, the new ones included.
        row_positions: (B, T), logical positions, only where they differ by example (decoding a left-padded batch);
            (T,) where they do not but are data (a cache of fixed size in compiled code); otherwise row t is at position
            columns − rows + t.
        key_positions: (B, S), only where they differ by example; otherwise column s is at position s.
    """

    rows: int
    columns: int
    row_positions: Tensor | None = None
    key_positions: Tensor | None = None

    @property
    def offset(self) -> int:
        return self.columns - self.rows

    def take(self, table: Tensor) -> Tensor:
        """Cut a table of scores (H, N, N) to (H, T, S), or (B, H, T, S) where positions differ by example."""
        if self.key_positions is None:
            return self.take_rows(table)[..., : self.columns]
        assert self.row_positions is not None
        picked = table[:, self.row_positions[:, :, None], self.key_positions[:, None, :]]
        return picked.transpose(0, 1)

    def take_rows(self, table: Tensor) -> Tensor:
        """Cut a table (H, N, …) to the rows, (H, T, …), where positions are the same for all examples."""
        if self.row_positions is None:
            return table[:, self.offset : self.columns]
        return table.index_select(1, self.row_positions)

    def take_columns(self, scores: Tensor) -> Tensor:
        """Bring the columns of scores (B, H, T, ≥ S), by logical position, into the order of the slots."""
        if self.key_positions is None:
            return scores[..., : self.columns]
        return scores.gather(-1, self.key_positions[:, None, None, :].expand(*scores.shape[:3], -1))


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a function without any; subclasses add fields."""

    def check(self, components: int, max_length: int | None) -> None:
        """Check the options against the synthesizer they are for.

        Args:
            components: how many functions it is made of.
            max_length: the longest sequence, where known.

        Raises:
            ValueError: they do not fit.
        """


class SynthesizingFunction(nn.Module):
    """Maps the layer's input to attention logits.

    The layer projects its input once for the values and for its function: a function names in `widths` how many
    features it wants of that projection, and is called with them. So one GEMM serves all functions of a mixture.

    Attributes:
        name: its name in `synthesizer`.
        Options: dataclass of its options.
        widths: of the projections of the input that it wants; none for logits that ignore the input.
        max_length: longest sequence, or None.
        constant_feature: whether a layer may hand it, and itself take for the values, heads that are one wider: a
            feature that is 1 in its input, 0 in the values. A bias on the keys is then part of an inner product, and
            nothing has to be copied to append it.
        caches_keys: whether a decoding cache has to keep keys for it, beside the values.
        is_alone: whether its logits are all there is, and not part of a mixture.
    """

    name: ClassVar[str] = ""
    Options: ClassVar[type[Options]] = Options
    needs_max_length: ClassVar[bool] = True
    constant_feature: bool = False
    caches_keys: bool = False
    is_alone: bool = True
    widths: tuple[int, ...] = ()
    max_length: int | None = None

    @property
    def projected(self) -> int:
        """How many features of the projected input it wants."""
        return sum(self.widths)

    def keys(self, inputs: Sequence[Tensor]) -> Tensor | None:
        """The keys (B, H, T, K) to cache, from the projected inputs (B, T, width) each; None where none are needed."""
        return None

    def forward(self, inputs: Sequence[Tensor], span: Span, keys: Tensor | None) -> Logits:
        """The logits of `span`.

        Args:
            inputs: the projected inputs, (B, T, width) for each of `widths`.
            keys: (B, H, S, K), those of `keys` with the cached ones before them.
        """
        raise TypeError(f"{type(self).__name__} does not define forward()")

    def logit_parameters(self) -> list[nn.Parameter]:
        """Its own parameters that are logits, or mix them: they may start near zero, and are not small for that."""
        return []

    def reset_parameters(self) -> None:
        """Initialise the function's own parameters (not the projection of the input, which is the layer's)."""


REGISTRY: dict[str, type[SynthesizingFunction]] = {}


class _Named(Protocol):
    name: ClassVar[str]


_C = TypeVar("_C", bound=type[_Named])


def registrar(registry: dict[str, _C]) -> Callable[[str], Callable[[_C], _C]]:
    """The decorator that makes classes known in `registry`, by the name that it is called with."""

    def register(name: str) -> Callable[[_C], _C]:
        def decorate(cls: _C) -> _C:
            cls.name = name
            registry[name] = cls
            return cls

        return decorate

    return register


# Makes a class known in `synthesizer`.
register = registrar(REGISTRY)


def read_options(kind: type[Options], name: str, given: Mapping[str, Any]) -> Options:
    """Options from a mapping.

    Raises:
        ValueError: an unknown option; the known ones are listed.
    """
    known = [f.name for f in fields(kind)]
    for key in given:
        if key not in known:
            listed = ", ".join(known) if known else "none"
            raise ValueError(f"got unknown option {key!r} for {name!r}; expected one of: {listed}")
    return kind(**given)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, T, H·K) to (B, H, T, K)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def positive(value: object, option: str, name: str) -> None:
    """Check an option that has to be a positive number.

    Raises:
        ValueError: it is not.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < float(cast(float, value)) < float("inf"):
        raise ValueError(f"got {option}={value!r} for {name!r}; expected a positive number")


def whole(value: object, option: str, name: str) -> None:
    """Check an option that has to be a whole number of at least 1.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"got {option}={value!r} for {name!r}; expected a whole number of at least 1")


def flag(value: object, option: str, name: str) -> None:
    """Check an option that has to be true or false.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(value, bool):
        raise ValueError(f"got {option}={value!r} for {name!r}; expected true or false")


def empty(*shape: int, device: torch.device | str | None, dtype: torch.dtype | None) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape, device=device, dtype=dtype))


def reset_map(weight: Tensor, bias: Tensor | None) -> None:
    """Initialise a linear map in each head, (H, out, in), and its bias (H, out): Glorot's uniform, and zeros."""
    bound = (6 / (weight.shape[1] + weight.shape[2])) ** 0.5
    nn.init.uniform_(weight, -bound, bound)
    if bias is not None:
        nn.init.zeros_(bias)
