"""synthesizer settings [KEY …]."""

from __future__ import annotations

from ..errors import UserError
from .options import argument, option


def settings(
    *,
    keys: list[str] | None = argument("KEY", "Keys, functions or tasks to show. [default: all]", None),
    preset: str = option("The preset whose values are shown.", "tiny"),
) -> None:
    """List the keys of --set, their values in a preset and meanings.

    Example: synthesizer settings learning_rate d_model random --preset base
    """
    from rich.console import Console
    from rich.table import Table

    from synthetic_attention.validation import did_you_mean

    from ..training.settings import list_settings

    every, keys = list_settings(preset), keys or []
    names = [{each.key, each.key.partition(".")[0], each.group.rpartition(" ")[2]} for each in every]
    for key in keys:
        if not any(key in each for each in names):
            raise UserError(f"got unknown setting {key!r}{did_you_mean(key, [each.key for each in every])}")
    shown = [each for each, own in zip(every, names, strict=True) if not keys or own & {*keys}]
    console = Console(markup=False, highlight=False)
    for group in dict.fromkeys(each.group for each in shown):
        table = Table("key", preset, "meaning", title=group, title_justify="left", box=None, pad_edge=False)
        for each in shown:
            if each.group == group:
                table.add_row(each.key, "" if each.value is None else str(each.value), each.meaning)
        console.print(table)
