"""docs/faq.md: its code runs in order and prints what the page says."""

import re

import pytest

from documents import ROOT, run

FAQ = ROOT / "docs" / "faq.md"
_NUMBER = re.compile(r"-?\d+\.\d+")


@pytest.fixture(scope="module")
def results():
    return run(FAQ)


def test_every_block_that_prints_shows_what_it_printed(results):
    assert sum(bool(expected) for _, _, expected in results) >= 6
    for source, printed, expected in results:
        # Words exactly, decimal fractions to the last digit shown: another machine may round the other way.
        assert _NUMBER.sub("#", printed).split() == _NUMBER.sub("#", expected).split(), source
        got, shown = ([float(n) for n in _NUMBER.findall(text)] for text in (printed, expected))
        assert got == pytest.approx(shown, abs=1.01e-4), source


def test_the_inputs_are_those_of_the_question(results):
    assert "[0.0844, 0.2683, 0.4299, 0.1827, 0.1188]" in results[0][0]
    assert "[0.3806, 0.1775, 0.5457, 0.6746, 0.4505]" in results[0][0]
