"""An HTML page with a table of contents, its tables and its pictures: no scripts, nothing loaded from elsewhere."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
body { font-family: sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; color: #222; line-height: 1.4; }
h1, h2, p, li { overflow-wrap: anywhere; }
img { max-width: 100%; border: 1px solid #ddd; }
figure { margin: 1rem 0; }
figcaption { font-size: 0.9rem; color: #555; }
div { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: 0.2rem 0.7rem; border-bottom: 1px solid #ddd; text-align: right; }
th:first-child, td:first-child { text-align: left; }
"""


class Page:
    """The page and its pictures, in one folder. Tables and pictures belong to the section added last.

    Attributes:
        files: the names of the pictures, then of the page.
    """

    def __init__(self, folder: Path, title: str) -> None:
        self.folder, self.title = folder, title
        self.files: list[str] = []
        self._headings: list[str] = []
        self._body: list[str] = []

    def add_section(self, heading: str, text: str) -> None:
        """Start a section with a paragraph."""
        self._headings.append(escape(heading))
        self._body.append(f'<h2 id="section{len(self._headings)}">{escape(heading)}</h2><p>{escape(text)}</p>')

    def add_table(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Add a table. On a narrow screen it scrolls by itself."""
        head = "".join(f"<th>{escape(text)}</th>" for text in headings)
        body = "\n".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows)
        self._body.append(f"<div><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>")

    def add_picture(self, figure: Figure, name: str, caption: str) -> None:
        """Write `figure` as NAME.png and show it."""
        file = f"{name}.png"
        with warnings.catch_warnings():
            # A character that no font has is drawn as an empty box.
            warnings.filterwarnings("ignore", r"Glyph \d+")
            figure.savefig(self.folder / file)
        self.files.append(file)
        image = f'<a href="{escape(file)}"><img src="{escape(file)}" alt="{escape(caption)}" loading="lazy"></a>'
        self._body.append(f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>")

    def write(self) -> None:
        """Write the page as index.html."""
        links = (f'<li><a href="#section{n}">{text}</a></li>' for n, text in enumerate(self._headings, start=1))
        head = (
            '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self.title)}</title><style>{_STYLE}</style>"
        )
        body = "\n".join([f"<h1>{escape(self.title)}</h1><nav><ul>", *links, "</ul></nav>", *self._body])
        text = f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'
        (self.folder / "index.html").write_text(text, encoding="utf-8")
        self.files.append("index.html")
