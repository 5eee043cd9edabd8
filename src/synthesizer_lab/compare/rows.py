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

from ..errors import UserError

_CONTROL = "-control"
_DEFAULT_MATCH = "random+vanilla"
# These settings decide the data, the tokenizer, the budget or the selection, so they are the same for all rows.
_SHARED = {"max_steps", "minutes", "vocab_size", "tokenizer_characters", "max_position_embeddings", "on_long"}
_SHARED |= {"eval_steps", "seed"}


@dataclass(frozen=True)
class Row:
    """A row of a comparison.

    Args:
        label: the text of the row, with one space after each comma; its name in tables.
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


def folder_name(text: str) -> str:
    """A text as the name of a folder: letters, digits and `.+@=_-` stay, other characters become `_`."""
    return re.sub(r"[^\w.+@=-]+", "_", text).strip("_.")


def parse_rows(texts: Iterable[str]) -> list[Row]:
    """Parse rows; each text may list several rows separated by commas.

    Commas and @ inside brackets do not separate, so a synthesizer may be a YAML list (one per layer) or
    {encoder: …, decoder: …}.

    Raises:
        UserError: a malformed row, a setting that all rows share, or a row given twice.
    """
    rows = [_parse_row(part) for text in texts for part in _split(text, ",")]
    # Lower case: some file systems do not distinguish upper and lower case.
    if len({row.folder.lower() for row in rows}) < len(rows):
        raise UserError(f"got rows {', '.join(row.label for row in rows)}; expected each row, and its folder, once")
    return rows


def _parse_row(text: str) -> Row:
    name, *options = _split(text, "@")
    is_control = name.endswith(_CONTROL)
    pairs = [(key.strip(), value.strip()) for key, _, value in (option.partition("=") for option in options)]
    values = dict(pairs)
    if not name.removesuffix(_CONTROL) or not all(map(all, pairs)) or len(values) < len(pairs):
        raise UserError(f"got the row {text!r}; expected SYNTHESIZER or SYNTHESIZER@KEY=VALUE…, each key once")
    label = re.sub(r"\s*,\s*", ", ", "@".join([name, *(f"{key}={value}" for key, value in values.items())]))
    if wrong := [key for key in values if key in _SHARED or (is_control and key == "d_ff")]:
        raise UserError(f"got {', '.join(wrong)} in the row {text!r}; expected settings of one row; --set is for all")
    match, start = values.pop("match", None), values.pop("from", None)
    if (match is not None and not is_control) or start not in (None, "none"):
        raise UserError(f"got the row {text!r}; expected SYNTHESIZER{_CONTROL}@match=… or @from=none")
    overrides = tuple(f"{key}={value}" for key, value in values.items())
    match = match or (_DEFAULT_MATCH if is_control else None)
    return Row(label, name.removesuffix(_CONTROL), overrides, match, start is not None)


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
