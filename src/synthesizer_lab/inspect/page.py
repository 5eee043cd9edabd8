"""An HTML page with its tables and its pictures: no scripts, nothing loaded from elsewhere."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

_HEAD = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font-family: sans-serif; max-width: 75rem; margin: 2rem auto; overflow-wrap: anywhere; }}
img {{ max-width: 100%; }}
th, td {{ padding: 0.2rem 0.7rem; border-bottom: 1px solid #ddd; text-align: right; }}
th:first-child, td:first-child {{ text-align: left; }}
</style></head><body><h1>{title}</h1>
"""


class Page:
    """The page and its pictures, in one folder. Tables and pictures belong to the section added last."""

    def __init__(self, folder: Path, title: str) -> None:
        self.folder, self._parts = folder, [_HEAD.format(title=escape(title))]

    def add_section(self, heading: str, text: str) -> None:
        """Start a section with a paragraph."""
        self._parts.append(f"<h2>{escape(heading)}</h2><p>{escape(text)}</p>")

    def add_table(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add a table of rows that have a value by heading: a number, a list, or a dictionary of these."""
        headings = list(dict.fromkeys(heading for row in rows for heading in row))
        texts = [[_text(row.get(heading, "")) for heading in headings] for row in rows]
        cells = ["".join(f"<th>{escape(text)}</th>" for text in headings)]
        cells += ["".join(f"<td>{escape(text)}</td>" for text in row) for row in texts]
        self._parts.append("<table><tr>" + "</tr>\n<tr>".join(cells) + "</tr></table>")

    def add_picture(self, figure: Figure, name: str, caption: str) -> None:
        """Write `figure` as NAME.png and show it."""
        with warnings.catch_warnings():
            # A character that no font has is drawn as an empty box.
            warnings.filterwarnings("ignore", r"Glyph \d+")
            figure.savefig(self.folder / f"{name}.png")
        image = f'<img src="{escape(name)}.png" alt="{escape(caption)}">'
        self._parts.append(f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>")

    def write(self) -> None:
        """Write the page as index.html."""
        (self.folder / "index.html").write_text("\n".join([*self._parts, "</body></html>\n"]), encoding="utf-8")


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if isinstance(value, dict):
        return " / ".join(map(_text, value.values()))
    return f"{value:.2f}" if isinstance(value, float) else str(value)
