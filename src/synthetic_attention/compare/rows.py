"""The rows of a comparison: `SYNTHESIZER[-control][@KEY=VALUE…]`, separated by commas.

vanilla,random+vanilla                      two synthesizers
random@num_heads=1,random@num_heads=2       settings of one row only
vanilla-control                             vanilla with wider feed-forward layers, as many parameters as random+vanilla
dense-control@match=dense+vanilla           as many parameters as another synthesizer
random@from=none                            new weights, in a comparison that starts from runs
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import yaml

from ..errors import UserError

__all__ = ["RECORD", "Row", "folder_name", "parse_rows", "parse_seeds", "read_record"]

# The file of a comparison that lists its rows and their seeds.
RECORD = "comparison.yaml"

_CONTROL = "-control"
_DEFAULT_MATCH = "random+vanilla"
# These settings decide the data, the tokenizer, the budget or the selection, so they are the same for all rows.
_SHARED = frozenset({"max_steps", "minutes", "vocab_size", "max_position_embeddings", "on_long", "eval_steps", "seed"})


@dataclass(frozen=True)
class Row:
    """A row of a comparison.

    Args:
        label: the text of the row without spaces around its parts; its name in tables.
        synthesizer: as `parse_synthesizer` reads it.
        overrides: settings of this row only, as `--set` takes them.
        match: for a control row, the synthesizer whose number of parameters it gets.
        scratch: start from new weights although the comparison starts from runs.
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

    @property
    def source_label(self) -> str:
        """The label of the row to start from, in another comparison."""
        return self.label.replace("@from=none", "")


def folder_name(text: str) -> str:
    """`text` as the name of a folder: letters, digits and `.+@=_-` stay, other characters become `_`."""
    return re.sub(r"[^\w.+@=-]+", "_", text).strip("_.")


def parse_rows(texts: Iterable[str]) -> list[Row]:
    """Parse rows; each text may list several rows separated by commas.

    Commas and @ inside brackets do not separate, so a synthesizer may be a YAML list (one per layer) or
    {encoder: …, decoder: …}.

    Raises:
        UserError: no rows, a malformed row, a setting that all rows share, or a row given twice.
    """
    rows = [_parse_row(part) for text in texts for part in _split(text, ",")]
    if not rows:
        raise UserError("got no synthesizers; expected names separated by commas: vanilla,random+vanilla")
    # Lower case: some file systems do not distinguish upper and lower case.
    if len({row.folder.lower() for row in rows}) < len(rows):
        raise UserError(f"got rows {', '.join(row.label for row in rows)}; expected each row, and its folder, once")
    return rows


def parse_seeds(text: str) -> list[int]:
    """Parse seeds separated by commas.

    Raises:
        UserError: a seed is not a whole number, or is given twice.
    """
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"got seeds {text!r}; expected whole numbers separated by commas: 0,1,2") from None
    if len(set(seeds)) < len(seeds):
        raise UserError(f"got seeds {text!r}; expected each seed once")
    return seeds


def read_record(folder: Path) -> dict[str, list[int]] | None:
    """The rows of a comparison by label, with their seeds; None if there is no comparison in `folder`.

    Raises:
        UserError: comparison.yaml cannot be read.
    """
    path = folder / RECORD
    try:
        return {str(label): list(seeds) for label, seeds in yaml.safe_load(path.read_text("utf-8"))["rows"].items()}
    except FileNotFoundError:
        return None
    except (yaml.YAMLError, ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path}: expected rows and their seeds, as `synthesizer compare` writes them") from None


def _parse_row(text: str) -> Row:
    name, *options = _split(text, "@")
    is_control = name.endswith(_CONTROL)
    if not name.removesuffix(_CONTROL):
        raise UserError(f"got the row {text!r}; expected SYNTHESIZER or SYNTHESIZER@KEY=VALUE")
    match = _DEFAULT_MATCH if is_control else None
    parts, overrides, scratch = [name], [], False
    for option in options:
        key, _, value = (part.strip() for part in option.partition("="))
        if not key or not value:
            raise UserError(f"got {option!r} in the row {text!r}; expected KEY=VALUE after each @")
        if key in _SHARED or (is_control and key == "d_ff"):
            raise UserError(f"got {key} in the row {text!r}; it cannot differ between rows: use --set, --steps, …")
        if (key == "match" and not is_control) or (key == "from" and value != "none"):
            raise UserError(f"got {option!r} in the row {text!r}; expected SYNTHESIZER{_CONTROL}@match=… or @from=none")
        if key == "match":
            match = value
        elif key == "from":
            scratch = True
        else:
            overrides.append(f"{key}={value}")
        parts.append(f"{key}={value}")
    return Row("@".join(parts), name.removesuffix(_CONTROL), tuple(overrides), match, scratch)


def _split(text: str, separator: str) -> list[str]:
    """Split `text` at separators outside brackets, and strip the parts."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "[{(") - (character in "]})")
        if character == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    if depth:
        raise UserError(f"got {text!r}; expected as many closing brackets as opening ones")
    return [part.strip() for part in parts]
