"""What all pictures share: matplotlib without global state, the shape of a grid of panels, fonts, colour bars."""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Panels", "broken", "colour_bar", "families", "glyphs_reported", "grid_shape", "panels", "save"]

# Wide as a slide.
_ASPECT = 16 / 9
_DPI = 150
_TITLE = 12
# Width of a letter, at most on an average, for each point of its size.
_INCHES_PER_POINT = 0.0085
# Beside matplotlib's own DejaVu Sans, which has Latin, Greek, Cyrillic, Arabic and Hebrew: the usual fonts with more.
_MORE_FONTS = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans", "Noto Sans Devanagari", "Noto Sans Thai"),
    *("Source Han Sans", "WenQuanYi Zen Hei", "IPAGothic", "Arial Unicode MS", "PingFang SC", "Microsoft YaHei"),
)
Panels = list[list["Axes"]]


def grid_shape(count: int) -> tuple[int, int]:
    """Rows and columns for `count` square panels: about as wide as a slide, and hardly a place empty."""

    def badness(columns: int) -> float:
        rows = -(-count // columns)
        return abs(math.log(columns / rows / _ASPECT)) + 4 * (rows * columns - count) / count

    columns = min(range(1, count + 1), key=badness)
    return -(-count // columns), columns


def panels(rows: int, columns: int, size: tuple[float, float], title: str, **options: Any) -> tuple[Figure, Panels]:
    """A figure with `title` over rows × columns panels of `size` inches (width, height) each, labels not counted."""
    from matplotlib.figure import Figure

    width, height = size
    inches, letter = columns * width + 1.5, _TITLE * _INCHES_PER_POINT
    # A title that is wider than the figure would be cut off.
    lines = textwrap.wrap(title, int((inches - 0.4) / letter), break_long_words=False, break_on_hyphens=False)
    inches = max(inches, letter * max(map(len, lines)) + 0.4)
    figure = Figure(figsize=(inches, rows * height + 1.0 + 0.2 * len(lines)), dpi=_DPI)
    figure.suptitle("\n".join(lines), fontsize=_TITLE, parse_math=False)
    # A little more room than usual at the edges, for what hangs below the line.
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08)
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, axes.tolist()


def broken(name: str, inches: float, points: float) -> str:
    """The name of a mixture on as many lines as it takes to be `inches` wide at most, broken behind a "+"."""
    letters = inches / (_INCHES_PER_POINT * points)
    lines = [""]
    for part in name.replace("+", "+\n").split("\n"):
        lines += [""] if lines[-1] and len(lines[-1] + part) > letters else []
        lines[-1] += part
    return "\n".join(lines)


def colour_bar(figure: Figure, image: Any, axes: Sequence[Axes], label: str, **options: Any) -> None:
    """A legend of the colours of `image` at the right of `axes`."""
    # As wide in a tall figure as in a low one.
    bar = figure.colorbar(image, ax=list(axes), aspect=max(20.0, figure.get_figheight() / 0.2), pad=0.02, **options)
    bar.set_label(label, fontsize=9)
    bar.ax.tick_params(labelsize=8)


def families() -> list[str]:
    """Font families for text in any language: matplotlib's own, then those that are installed and have more signs."""
    from matplotlib import font_manager

    installed = set(font_manager.get_font_names())
    return ["DejaVu Sans", *(name for name in _MORE_FONTS if name in installed)]


@contextmanager
def glyphs_reported() -> Iterator[list[str]]:
    """Collect the signs that no font has, instead of a warning for each; they are drawn as boxes."""
    missing: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        yield missing
    for warning in caught:
        text = str(warning.message)
        if text.startswith("Glyph "):
            missing.append(text)
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def save(figure: Figure, path: Path) -> None:
    """Write `figure` as PNG."""
    figure.savefig(path, format="png")
