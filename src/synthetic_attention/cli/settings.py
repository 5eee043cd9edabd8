"""synthesizer settings [KEY …]."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from ..errors import UserError
from .console import set_up_libraries

__all__ = ["settings"]


def settings(
    keys: Annotated[
        list[str] | None, Argument(metavar="KEY", help="Keys, functions or tasks to show. [default: all]")
    ] = None,
) -> None:
    """List the keys of --set with their defaults and meanings."""
    set_up_libraries()
    from rich.console import Console
    from rich.table import Table

    from ..training.settings import list_settings
    from ..validation import did_you_mean

    shown = []
    for setting in list_settings():
        names = {setting.key, setting.key.partition(".")[0], setting.group.rpartition(" ")[2]}
        shown += [(setting, names)] if not keys or names & {*keys} else []
    known = [name for _, names in shown for name in names]
    for key in keys or ():
        if key not in known:
            hint = did_you_mean(key, [setting.key for setting in list_settings()])
            raise UserError(f"got unknown setting {key!r}{hint}")
    console = Console(markup=False, highlight=False)
    for group in dict.fromkeys(setting.group for setting, _ in shown):
        table = Table("key", "default", "meaning", title=group, title_justify="left", box=None, pad_edge=False)
        for setting, _ in shown:
            if setting.group == group:
                default = "" if setting.default is None else str(setting.default)
                table.add_row(setting.key, default, setting.meaning)
        console.print(table)
