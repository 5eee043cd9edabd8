"""The rows of a comparison: `SYNTHESIZER[-control][@KEY=VALUE…]`, separated by commas.

vanilla,random+vanilla                      two synthesizers
random@num_heads=1,random@num_heads=2       a setting of the row's own
vanilla-control                             vanilla, as large as random+vanilla by wider feed-forward layers
dense-control@match=dense+vanilla           as large as another synthesizer
random@from=none                            in a comparison that starts from runs: new weights all the same
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..tasks import UserError

__all__ = ["Row", "closest_d_ff", "folder_name", "parse_rows", "parse_seeds"]

_CONTROL, _MATCH = "-control", "match"
_FROM, _NOTHING = "from", "none"
_MATCHED = "random+vanilla"
# What decides the data, the tokenizer, the budget or how often there is a choice of the best: one for all rows.
_SHARED = frozenset(
    {"steps", "minutes", "vocab_size", "max_position_embeddings", "long_sentences", "eval_interval", "seed"}
)
_OPEN, _CLOSE = "[{(", "]})"


@dataclass(frozen=True)
class Row:
    """A row of a comparison.

    Args:
        label: the text of the row, without spaces around its parts; what tables call it.
        synthesizer: as `parse_synthesizer` reads it.
        overrides: settings of this row alone, as `--set` takes them.
        match: of a control row, the synthesizer whose number of parameters it has.
        scratch: starts from new weights, where other rows start from those of runs.
    """

    label: str
    synthesizer: str
    overrides: tuple[str, ...] = ()
    match: str | None = None
    scratch: bool = False

    @property
    def folder(self) -> str:
        """The label as the name of a folder."""
        return folder_name(self.label)


def folder_name(text: str) -> str:
    """`text` as the name of a folder: runs of other characters than letters, digits and `.+@=_-` become `_`."""
    return re.sub(r"[^\w.+@=-]+", "_", text).strip("_.")


def parse_rows(texts: Iterable[str]) -> list[Row]:
    """The rows that `texts` list, each text several of them separated by commas.

    Commas and @ inside of brackets separate nothing, so a synthesizer may be a YAML list (one per layer) or
    {encoder: …, decoder: …}.

    Raises:
        UserError: there is none, a row is not one, sets what all rows share, or comes twice.
    """
    rows = [_parse_row(part) for text in texts for part in _split(text, ",")]
    if not rows:
        raise UserError("got no synthesizers; expected names separated by commas: vanilla,random+vanilla")
    folders: dict[str, str] = {}
    for row in rows:
        # Some file systems do not tell a from A.
        other = folders.setdefault(row.folder.lower(), row.label)
        if other != row.label:
            raise UserError(f"got rows {other!r} and {row.label!r}, whose folders would both be {row.folder!r}")
    if len(folders) < len(rows):
        raise UserError(f"got rows {', '.join(row.label for row in rows)}; expected each row once")
    return rows


def parse_seeds(text: str) -> list[int]:
    """The seeds that `text` lists, separated by commas.

    Raises:
        UserError: one is no number, or comes twice.
    """
    parts = [part.strip() for part in text.split(",")]
    try:
        seeds = [int(part) for part in parts]
    except ValueError:
        raise UserError(f"got seeds {text!r}; expected whole numbers separated by commas: 0,1,2") from None
    if len(set(seeds)) < len(seeds):
        raise UserError(f"got seeds {text!r}; expected each seed once")
    return seeds


def closest_d_ff(count: Callable[[int], int], target: int) -> int:
    """The d_ff at which a model is closest to `target` parameters.

    Args:
        count: the parameters of the model by its d_ff; as many more for each unit.

    Raises:
        UserError: already the smallest model has more parameters than `target`.
    """
    smallest = count(1)
    if smallest > target:
        raise UserError(f"with d_ff=1 it has {smallest:,} parameters already; expected at most {target:,}")
    return 1 + round((target - smallest) / (count(2) - smallest))


def _parse_row(text: str) -> Row:
    name, *options = (part.strip() for part in _split(text, "@"))
    controlled = name.endswith(_CONTROL)
    if not name.removesuffix(_CONTROL):
        raise UserError(f"got the row {text!r}; expected SYNTHESIZER or SYNTHESIZER@KEY=VALUE")
    match = _MATCHED if controlled else None
    overrides, scratch = [], False
    for option in options:
        key, equals, value = (part.strip() for part in option.partition("="))
        if not equals or not key or not value:
            raise UserError(f"got {option!r} in the row {text!r}; expected KEY=VALUE after each @")
        if key == _MATCH:
            if not controlled:
                raise UserError(f"got {_MATCH} in the row {text!r}; only a row SYNTHESIZER{_CONTROL} has it")
            match = value
        elif key == _FROM:
            if value != _NOTHING:
                raise UserError(f"got {option!r} in the row {text!r}; expected {_FROM}={_NOTHING}, for new weights")
            scratch = True
        elif key in _SHARED:
            raise UserError(f"got {key} in the row {text!r}; it is the same for all rows: use --set, --steps, …")
        elif controlled and key == "d_ff":
            raise UserError(f"got d_ff in the row {text!r}; the size of a control row follows from its {_MATCH}")
        else:
            overrides.append(f"{key}={value}")
    label = "@".join([name, *("=".join(part.strip() for part in option.partition("=")[::2]) for option in options)])
    return Row(label, name.removesuffix(_CONTROL), tuple(overrides), match, scratch)


def _split(text: str, separator: str) -> list[str]:
    """The parts of `text` between separators outside of brackets, spaces around them cut off."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in _OPEN) - (character in _CLOSE)
        if character == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    if depth:
        raise UserError(f"got {text!r}; expected as many closing brackets as opening ones")
    return [part.strip() for part in parts]
