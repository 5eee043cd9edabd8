"""Fenced blocks of the Markdown documents."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(document: Path) -> list[tuple[str, str]]:
    """(language, content) of every fenced block, in order."""
    return _BLOCK.findall(document.read_text(encoding="utf-8"))
