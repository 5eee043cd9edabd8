"""Self-attention by name: `SynthesizerAttention`, or one of the baselines in its place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import synthesizers as functions
from .attention import SynthesizerAttention
from .baselines import BASELINES, Baseline
from .synthesizers import SynthesizerOptions
from .synthesizers.base import REGISTRY, Options, read_options

__all__ = ["SelfAttention", "build", "caches_keys", "has_logits", "known", "needs_max_length", "parse", "validate"]

SelfAttention = SynthesizerAttention | Baseline


def known() -> list[str]:
    """The names of the synthesizing functions, then those of the baselines."""
    return [*functions.known(), *sorted(BASELINES)]


def parse(name: str) -> tuple[str, ...]:
    """Split "random+vanilla" into its functions; a baseline stands alone.

    Raises:
        ValueError: a name is unknown (the known ones are listed), or a baseline in a mixture.
    """
    if not isinstance(name, str):
        return functions.parse(name)
    names = tuple(part.strip() for part in name.split("+"))
    found = [part for part in names if part in BASELINES]
    if not found:
        try:
            return functions.parse(name)
        except ValueError as error:
            raise ValueError(f"{error}; or, by itself, one of: {', '.join(sorted(BASELINES))}") from None
    if len(names) > 1:
        raise ValueError(f"got {found[0]!r} in the mixture {name!r}; expected it alone: it has no logits to mix")
    return names


def validate(name: str, options: SynthesizerOptions | None = None, max_length: int | None = None) -> None:
    """Check a name and all options, as `functions.validate` does, without building anything.

    Args:
        name: a synthesizer or a baseline.
        options: by function or baseline; those that are not in `name` may have some too, for a model's other layers.
        max_length: the longest sequence, where known.

    Raises:
        ValueError: an unknown name, option or value.
    """
    names, others = parse(name), _of_functions(options)
    owners = sorted([*known(), "mixture"])
    for owner in options if isinstance(options, Mapping) else ():
        if owner not in owners:
            raise ValueError(f"got options for unknown {owner!r}; expected one of: {', '.join(owners)}")
    for owner in BASELINES:
        chosen = _of_baseline(owner, options)
        if owner in names:
            chosen.check(1, max_length)
    functions.validate("vanilla" if names[0] in BASELINES else name, others, max_length)


def has_logits(name: str) -> bool:
    """Whether it has logits of all pairs of tokens, which a bias can be added to."""
    return parse(name)[0] not in BASELINES


def needs_max_length(name: str) -> bool:
    """Whether anything in it has parameters up to a maximum length."""
    return any((BASELINES.get(part) or REGISTRY[part]).needs_max_length for part in parse(name))


def caches_keys(name: str) -> bool:
    """Whether decoding has to keep keys beside the values."""
    return any((BASELINES.get(part) or REGISTRY[part]).caches_keys for part in parse(name))


def build(
    name: str,
    d_model: int,
    num_heads: int,
    max_length: int | None,
    *,
    is_causal: bool,
    options: SynthesizerOptions | None = None,
    **arguments: Any,
) -> SelfAttention:
    """Make a layer.

    Args:
        name: a synthesizer or a baseline.
        is_causal: whether a token will see only itself and those before it.
        options: by function or baseline.
        d_model, num_heads, max_length, arguments: of `SynthesizerAttention`.

    Raises:
        ValueError: an unknown name or option, sizes that do not fit, or a baseline that cannot be causal.
    """
    parts = parse(name)
    kind = BASELINES.get(parts[0])
    if kind is None:
        given = _of_functions(options)
        return SynthesizerAttention(d_model, num_heads, name, max_length, synthesizer_options=given, **arguments)
    if is_causal and not kind.can_be_causal:
        raise ValueError(
            f"got {name!r} where a token may not see those after it; expected it in an encoder only (of a model that "
            f"has a decoder too: {{encoder: {name}, decoder: vanilla}})"
        )
    make: Any = kind
    layer: Baseline = make(d_model, num_heads, max_length, options=_of_baseline(parts[0], options), **arguments)
    return layer


def _of_functions(options: SynthesizerOptions | None) -> SynthesizerOptions | None:
    """The options that are not of baselines."""
    if not isinstance(options, Mapping):
        return options
    return {owner: given for owner, given in options.items() if owner not in BASELINES}


def _of_baseline(name: str, options: SynthesizerOptions | None) -> Options:
    """The options of one baseline.

    Raises:
        ValueError: an unknown option or value.
    """
    given = options.get(name, {}) if isinstance(options, Mapping) else {}
    if not isinstance(given, Mapping):
        raise ValueError(f"got options {given!r} for {name!r}; expected a mapping from option to value")
    return read_options(BASELINES[name].Options, name, given)
