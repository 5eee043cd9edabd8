"""The base class of the synthesizing functions, mixtures and head groups of them, and the sizes of a layer.

Shape legend: B batch, H heads, T rows (new tokens), S columns (keys in use), K width of a head, N maximum length.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from ..logits import GroupedLogits, Logits, MixedLogits, Positions
from ..validation import check_size
from .registry import OPTIONS, group_size
from .rotary import Rotary


@dataclass(frozen=True, kw_only=True)
class Dimensions:
    """The sizes of a layer, which its function is made with.

    Attributes:
        num_heads: H.
        head_dim: K.
        max_length: N, or None where the layer has no maximum.
        bias: whether the projections have biases; the functions' own follow it by default.
        group_size: how many heads in a row share a value and a key.
        qk_norm: epsilon of the norm of queries and keys in dot products; None for no norm.
        rotary: turns queries and keys in dot products by their positions; None for no rotary positions.
    """

    d_model: int
    num_heads: int
    head_dim: int
    max_length: int | None = None
    bias: bool = True
    group_size: int = 1
    qk_norm: float | None = None
    rotary: Rotary | None = None
    device: torch.device | str | None = None
    dtype: torch.dtype | None = None

    @classmethod
    def of(
        cls, d_model: int, num_heads: int, head_dim: int | None, num_key_value_heads: int | None = None, **others: Any
    ) -> Dimensions:
        """Check the sizes (ValueError if they do not fit); K defaults to d_model / H, and every head has a value."""
        sizes = {"d_model": d_model, "num_heads": num_heads, "head_dim": head_dim, "max_length": others["max_length"]}
        sizes["num_key_value_heads"] = num_key_value_heads
        for name, size in sizes.items():
            if size is not None or name in ("d_model", "num_heads"):
                check_size(name, size)
        if head_dim is None and d_model % num_heads:
            raise ValueError(
                f"got d_model={d_model}, num_heads={num_heads}; expected a width that the heads divide, or head_dim"
            )
        head_dim = d_model // num_heads if head_dim is None else head_dim
        others["group_size"] = group_size(num_heads, num_key_value_heads)
        return cls(d_model=d_model, num_heads=num_heads, head_dim=head_dim, **others)

    @property
    def length(self) -> int:
        """The maximum length; ValueError if there is none."""
        if self.max_length is None:
            raise ValueError("got no max_length; expected the longest sequence: this synthesizer has parameters for it")
        return self.max_length

    @property
    def inner_dim(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def key_value_heads(self) -> int:
        """The number of values of a token, and of keys for dot products."""
        return self.num_heads // self.group_size

    def parameter(self, *shape: int) -> nn.Parameter:
        """A parameter that is not initialised."""
        return nn.Parameter(torch.empty(*shape, device=self.device, dtype=self.dtype))

    def projection(self, heads: int | None = None) -> nn.Linear:
        """A projection of the input to all heads, or to so many keys or values."""
        width = self.inner_dim if heads is None else heads * self.head_dim
        return nn.Linear(self.d_model, width, self.bias, device=self.device, dtype=self.dtype)


class SynthesizingFunction(nn.Module):
    """Maps the input of a layer to attention logits.

    A subclass owns its projections of the input (`q_proj`, …), and is made from `Dimensions`. Keyword-only
    arguments are its options.

    Attributes:
        name: its name in `synthesizer`.
        per_position: the axes of its tensors, by name, that are as long as the maximum length, if it has one.
        length_options: options whose default depends on the maximum length; their values are attributes of these names.
        logit_factor: tensors; if these are zeros, all logits are, and training can still change them.
        near_zero: its own parameters that are logits or mix them. They start near zero; optimizers that scale updates
            by the weights need to know.
        num_features: how many projections of the input it has; 0 for logits that ignore the input.
        values_by_feature: whether to lay out the values by feature (H, K, B, T), as the kernel for shared logits reads
            them.
        max_length: the longest sequence, or None.
        caches_keys: whether a decoding cache has to keep keys for it, as well as the values.
        key_heads: how many keys of width K it keeps for each token.
        components: the functions of a mixture or of groups of heads, else itself.
    """

    name: ClassVar[str] = ""
    is_layer: ClassVar[bool] = False
    per_position: ClassVar[Mapping[str, tuple[int, ...]]] = {}
    length_options: ClassVar[tuple[str, ...]] = ()
    logit_factor: ClassVar[tuple[str, ...]] = ()
    near_zero: ClassVar[tuple[str, ...]] = ()
    caches_keys: bool = False
    key_heads: int = 0
    num_features: int = 0
    max_length: int | None = None

    @property
    def values_by_feature(self) -> bool:
        return not self.num_features

    @property
    def components(self) -> list[SynthesizingFunction]:
        return [self]

    def weights(self) -> Tensor | None:
        """α of the components, (components, H or 1); None without weights."""
        return None

    def groups(self) -> list[tuple[slice, SynthesizingFunction]]:
        """The groups of heads, each with its function; all heads in one by default."""
        return [(slice(None), self)]

    def project(self, x: Tensor) -> Sequence[Tensor]:
        """The projections (…, H·K) of the input (…, d_model)."""
        return ()

    def keys(self, features: Sequence[Tensor], positions: Positions) -> Tensor | None:
        """The keys (B, key_heads, T, K) that a cache has to keep, from the projections (B, H, T, K); None for none."""
        return None

    def forward(self, features: Sequence[Tensor], positions: Positions, keys: Tensor | None) -> Logits:
        """The logits.

        Args:
            features: the projections of the input, split into heads, (B, H, T, K) each.
            positions: the rows and columns that are asked for.
            keys: (B, key_heads, S, K), those of `keys` after the cached ones.
        """
        raise NotImplementedError

    def logit_parameters(self) -> list[nn.Parameter]:
        """The parameters that `near_zero` names."""
        return [getattr(self, name) for name in self.near_zero if getattr(self, name) is not None]

    def reset_parameters(self) -> None:
        """Initialise its own parameters. (The layer initialises the projections.)"""

    def zero_logits(self) -> None:
        """Make its logits zeros for every input, or raise ValueError if training could not change them then."""
        if not self.logit_factor:
            raise ValueError(f"got {self.name!r}; expected a function that is trained, such as random")
        for tensor in (getattr(self, name) for name in self.logit_factor):
            if tensor is not None:
                nn.init.zeros_(tensor)

    def extend(self, max_length: int) -> None:
        """Change the maximum length: what both lengths have is kept, the rest is initialised."""
        if self.per_position:
            resize(self, self.per_position, max_length, self.reset_parameters)
            self.max_length = max_length


class CompositeFunction(SynthesizingFunction):
    """Several functions in one: a mixture, or groups of heads."""

    def __init__(self, functions: Sequence[SynthesizingFunction]) -> None:
        super().__init__()
        self.functions = nn.ModuleList(functions)
        self.num_features = sum(function.num_features for function in functions)
        self.key_heads = sum(function.key_heads for function in functions)
        self.max_length = min((f.max_length for f in functions if f.max_length is not None), default=None)

    @property
    def components(self) -> list[SynthesizingFunction]:
        return [unwrap(function) for function in self.functions]

    def reset_parameters(self) -> None:
        for function in self.components:
            function.reset_parameters()

    def extend(self, max_length: int) -> None:
        for function in self.components:
            function.extend(max_length)
        self.max_length = None if self.max_length is None else max_length

    def project(self, x: Tensor) -> Sequence[Tensor]:
        features: list[Tensor] = []
        for function in self.components:
            own, expected = function.project(x), function.num_features
            if len(own) != expected:
                raise ValueError(f"got {len(own)} projections from {function.name!r}; expected num_features={expected}")
            features += own
        return features

    def keys(self, features: Sequence[Tensor], positions: Positions) -> Tensor | None:
        # Two steps: torch.compile breaks the graph at an assignment inside of a list.
        all_keys = [function.keys(part, positions) for function, part in self._split(features)]
        keys = [key for key in all_keys if key is not None]
        return torch.cat(keys, dim=1) if len(keys) > 1 else keys[0] if keys else None

    def terms(self, features: Sequence[Tensor], positions: Positions, keys: Tensor | None) -> list[Logits]:
        """The logits of each function."""
        counts = [function.key_heads for function in self.components if function.key_heads]
        own = iter(() if keys is None or not counts else keys.split(counts, dim=1))
        return [
            call(part, positions, next(own) if function.key_heads else None)
            for call, (function, part) in zip(self.functions, self._split(features), strict=True)
        ]

    def _split(self, features: Sequence[Tensor]) -> list[tuple[SynthesizingFunction, Sequence[Tensor]]]:
        """Each function with its features."""
        parts, start = [], 0
        for function in self.components:
            parts.append((function, features[start : start + function.num_features]))
            start += function.num_features
        return parts


class Mixture(CompositeFunction):
    """A sum of synthesizing functions, weighted by learned α that sum to 1. All start with the same weight.

    Args:
        gate: "softmax", α is a softmax over the components in each head; "sigmoid", one scalar s in each layer, the
            first of two components has weight s and the second 1 − s (the authors' code); "sum", no weights.
    """

    near_zero = ("gate",)

    def __init__(
        self,
        functions: Sequence[SynthesizingFunction],
        dims: Dimensions,
        *,
        gate: Literal["softmax", "sigmoid", "sum"] = "softmax",
    ) -> None:
        super().__init__(functions)
        self.kind = gate
        shapes = {"softmax": (len(functions), dims.num_heads), "sigmoid": (1,)}
        self.gate = dims.parameter(*shapes[self.kind]) if self.kind in shapes else None
        if self.gate is not None:
            nn.init.zeros_(self.gate)

    def reset_parameters(self) -> None:
        if self.gate is not None:
            nn.init.zeros_(self.gate)
        super().reset_parameters()

    def weights(self) -> Tensor | None:
        if self.gate is None:
            return None
        if self.kind == "softmax":
            return torch.softmax(self.gate, dim=0)
        gate = torch.sigmoid(self.gate)
        return torch.stack([gate, 1 - gate])

    def forward(self, features: Sequence[Tensor], positions: Positions, keys: Tensor | None) -> MixedLogits:
        return MixedLogits(self.terms(features, positions, keys), self.weights())


OPTIONS["mixture"] = Mixture


class HeadGroups(CompositeFunction):
    """Synthesizing functions side by side: the first one makes the logits of the first `sizes[0]` heads, and so on.

    Each is made for its heads only, and so are its projections of the input and the keys that a cache keeps.
    """

    def __init__(self, functions: Sequence[SynthesizingFunction], sizes: Sequence[int]) -> None:
        super().__init__(functions)
        self.sizes = tuple(sizes)

    @property
    def values_by_feature(self) -> bool:
        # The smaller part is copied.
        pairs = zip(self.components, self.sizes, strict=True)
        return 2 * sum(size for function, size in pairs if function.values_by_feature) >= sum(self.sizes)

    def groups(self) -> list[tuple[slice, SynthesizingFunction]]:
        pairs = zip(self.components, itertools.accumulate(self.sizes), self.sizes, strict=True)
        return [(slice(end - size, end), function) for function, end, size in pairs]

    def forward(self, features: Sequence[Tensor], positions: Positions, keys: Tensor | None) -> GroupedLogits:
        return GroupedLogits(self.terms(features, positions, keys), self.sizes)


def unwrap(function: Any) -> SynthesizingFunction:
    """The function inside of PEFT's adapters of its parameters, for all but calls, which go through the adapters."""
    while not isinstance(function, SynthesizingFunction) and hasattr(function, "base_layer"):
        function = function.base_layer
    return cast(SynthesizingFunction, function)


@torch.no_grad()
def resize(module: nn.Module, axes: Mapping[str, tuple[int, ...]], size: int, reset: Callable[[], None]) -> None:
    """Change the size of some axes of a module's tensors: the leading block is kept, the rest drawn by `reset`."""
    old = {name: tensor for name in axes if (tensor := getattr(module, name)) is not None}
    for name, tensor in old.items():
        new = tensor.new_empty([size if axis in axes[name] else n for axis, n in enumerate(tensor.shape)])
        setattr(module, name, nn.Parameter(new, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else new)
    reset()
    for name, tensor in old.items():
        new = getattr(module, name)
        block = tuple(slice(min(sizes)) for sizes in zip(tensor.shape, new.shape, strict=True))
        new[block] = tensor[block]


def reset_projection(linear: nn.Linear) -> None:
    """Initialise a projection: Glorot's uniform distribution, and zeros."""
    nn.init.xavier_uniform_(linear.weight)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


def reset_map(weight: Tensor, bias: Tensor | None) -> None:
    """Initialise a linear map in each head, (H, out, in), and its bias (H, out), as a projection."""
    bound = (6 / (weight.shape[1] + weight.shape[2])) ** 0.5
    nn.init.uniform_(weight, -bound, bound)
    if bias is not None:
        nn.init.zeros_(bias)
