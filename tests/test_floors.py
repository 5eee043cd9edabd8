"""The floors of docs/architecture.md: a file imports from its own floor or from those below."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from documents import ROOT

PACKAGE = ROOT / "src" / "synthetic_attention"
# Import what they register or offer when it is asked for.
ABOVE_ALL = {"__init__", "__version__", "_registration"}


def floors() -> dict[str, float]:
    """The floor of each file or folder of the package; of those on one floor, a later one is above an earlier."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    found: dict[str, float] = {}
    for floor, places in re.findall(r"^\| (\d+) \| ([^|]+) \|", page, re.MULTILINE):
        for group, part in enumerate(places.split(";")):
            for name in re.findall(r"`(\w+)(?:\.py|/)`", part):
                found[name] = int(floor) + group / 10
    return found


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """The files and folders of the package that a file imports from, and whether for types alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    folders = path.relative_to(PACKAGE).parts[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            place = [*folders[: len(folders) - node.level + 1], *(node.module or "").split(".")]
            names = [part for part in place if part][:1] or [alias.name for alias in node.names]
            for name in names:
                yield name, id(node) in typing


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_is_imported_from_above(path: Path) -> None:
    known = floors()
    home = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if home in ABOVE_ALL:
        return
    for name, for_types in imports(path):
        assert name != "reference", "the oracle of the tests stands by itself"
        if name not in ABOVE_ALL and not for_types:
            assert known[name] <= known[home], f"{path.name} imports {name}"


def test_every_part_of_the_package_has_a_floor() -> None:
    parts = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert parts - ABOVE_ALL == floors().keys()
