"""docs/choosing.md: its code runs in order and prints what the page says."""

import re

import pytest

from documents import ROOT, run

PAGE = ROOT / "docs" / "choosing.md"


@pytest.fixture(scope="module")
def results():
    return run(PAGE)


def test_every_block_that_prints_shows_what_it_printed(results):
    assert len(results) == 4
    for source, printed, expected in results:
        assert printed == expected, source


def test_the_table_of_formulas_has_the_counts_of_the_package(results):
    counts = {line.split()[0]: line.split()[2] for line in results[0][1].splitlines()}
    rows = re.findall(r"^\| `(\w+)` \| .* \| ([\d,]+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == 6
    assert all(counts[name] == shown for name, shown in rows)


def test_the_authors_modes_are_all_the_same(results):
    assert [line.split()[1] for line in results[-1][1].splitlines()] == ["True"] * 6
