"""What all pictures share: matplotlib without global state, the shape of a grid of panels, fonts, colour bars."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Panels", "colour_bar", "families", "glyphs_reported", "grid_shape", "panels", "save"]

# Wide as a slide.
_ASPECT = 16 / 9
_DPI = 150
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
    figure = Figure(figsize=(columns * width + 1.5, rows * height + 1.2), dpi=_DPI)
    figure.suptitle(title, fontsize=12, parse_math=False)
    # A little more room than usual at the edges, for what hangs below the line.
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08)
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, axes.tolist()


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
