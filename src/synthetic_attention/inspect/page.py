"""One HTML page that shows pictures and tables: no scripts, nothing loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

__all__ = ["Picture", "Section", "Table", "render"]

_STYLE = """
body { font-family: sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
img { max-width: 100%; border: 1px solid #ddd; }
figure { margin: 1rem 0; }
figcaption { font-size: 0.9rem; color: #555; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: 0.2rem 0.7rem; border-bottom: 1px solid #ddd; text-align: right; }
th:first-child, td:first-child { text-align: left; }
summary { cursor: pointer; color: #06c; }
"""


@dataclass(frozen=True)
class Picture:
    """A picture beside the page: the name of its file, and what it shows."""

    file: str
    caption: str


@dataclass(frozen=True)
class Table:
    """A table with a line of headings; numbers as text."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass
class Section:
    """A part of the page: a heading, paragraphs, tables, pictures, and more pictures that are folded away."""

    heading: str
    paragraphs: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    folded: list[Picture] = field(default_factory=list)
    folded_name: str = "more"

    def render(self) -> str:
        """The section as HTML."""
        lines = [f"<h2>{escape(self.heading)}</h2>"]
        lines += [f"<p>{escape(text)}</p>" for text in self.paragraphs]
        lines += [_table(table) for table in self.tables]
        lines += [_picture(picture) for picture in self.pictures]
        if self.folded:
            lines.append(f"<details><summary>{escape(self.folded_name)} ({len(self.folded)})</summary>")
            lines += [_picture(picture) for picture in self.folded]
            lines.append("</details>")
        return "\n".join(lines)


def render(title: str, sections: Sequence[Section]) -> str:
    """The page."""
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    body = "\n".join([f"<h1>{escape(title)}</h1>", *(section.render() for section in sections)])
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _picture(picture: Picture) -> str:
    file, caption = escape(picture.file, quote=True), escape(picture.caption)
    image = f'<a href="{file}"><img src="{file}" alt="{caption}" loading="lazy"></a>'
    return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in table.headings)
    rows = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>\n" for row in table.rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{rows}</tbody></table>"
