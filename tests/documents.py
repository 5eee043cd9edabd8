"""Run the Python blocks of a Markdown document and compare what they print with the text block under each."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ROOT = Path(__file__).parent.parent


def blocks(document: Path) -> list[tuple[str, str]]:
    """(language, content) of every fenced block, in order."""
    return _BLOCK.findall(document.read_text(encoding="utf-8"))


def run(document: Path) -> list[tuple[str, str, str]]:
    """Run the Python blocks in order, in one namespace.

    Returns:
        (source, printed, expected) of each; expected is "" where no text block follows.
    """
    found = blocks(document)
    namespace: dict[str, Any] = {"__name__": document.stem}
    results = []
    for i, (language, source) in enumerate(found):
        if language != "python":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(source, f"{document.name}, block {i}", "exec"), namespace)
        follows = i + 1 < len(found) and found[i + 1][0] == "text"
        results.append((source, printed.getvalue(), found[i + 1][1] if follows else ""))
    return results
