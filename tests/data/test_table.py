"""Tokenized text in memory-mapped tables, and in windows."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synthesizer_lab.data.examples import TextExamples
from synthesizer_lab.data.records import Records, ahead
from synthesizer_lab.data.table import TokenTable
from synthesizer_lab.errors import UserError

NUMBERS = np.random.default_rng(0)


def _examples(count: int, **counts: int) -> TextExamples[Any]:
    parts = [NUMBERS.integers(0, 300, size=size).astype(np.int32) for size in NUMBERS.integers(1, 9, size=2 * count)]
    return TextExamples([(parts[2 * i], parts[2 * i + 1], i, i / 4) for i in range(count)], **counts)


BLOCKS = [_examples(5, dropped=2), _examples(3, truncated=1), TextExamples([], dropped=7, skipped=1), _examples(4)]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache"


def _never() -> Iterator[TextExamples[Any]]:
    raise AssertionError("the text is read again")
    yield


def _same(found: TextExamples[Any], blocks: list[TextExamples[Any]]) -> bool:
    expected = [item for block in blocks for item in block.items]
    pairs = zip(found.items, expected, strict=True)
    return all(np.array_equal(part, other) for pair in pairs for part, other in zip(*pair, strict=True))


def test_a_table_has_the_examples_of_its_blocks(cache: Path) -> None:
    blocks: Callable[[], Iterator[TextExamples[Any]]] = lambda: iter(BLOCKS)  # noqa: E731
    for source in (blocks, _never):
        table = TokenTable.cached(["key"], source, 300)
        whole = table.load(np.arange(4))
        assert _same(whole, BLOCKS)
        assert (whole.dropped, whole.truncated, whole.skipped) == (9, 1, 1)
        assert _same(table.load(np.array([3, 1])), [BLOCKS[3], BLOCKS[1]])
        assert table.columns["tokens"][0].dtype == np.uint16
        # Memory-mapped: the arrays own no memory.
        assert not any(array.flags.owndata or array.flags.writeable for array in table.columns["tokens"])
    assert len(TokenTable.cached(["other"], blocks, 2**17)) == 4
    assert len([*cache.rglob("*.arrow")]) == 2


def test_errors_leave_no_table(cache: Path) -> None:
    def broken() -> Iterator[TextExamples[Any]]:
        yield from BLOCKS
        raise UserError("line 51 is not UTF-8")

    with pytest.raises(UserError, match="line 51"):
        TokenTable.cached("key", broken, 300)
    assert len(TokenTable.cached("key", lambda: iter(BLOCKS * 9), 300)) == 36
    (file,) = cache.rglob("*.arrow")
    file.write_bytes(file.read_bytes()[:700])
    with pytest.raises(UserError, match=r"cache.*tokens-"):
        TokenTable.cached("key", _never, 300)
    file.with_name("dataset_info.json").write_text("{}")
    with pytest.raises(UserError, match=r"cache.*tokens-"):
        TokenTable.cached("key", _never, 300)
    # Neither can be written.
    shutil.rmtree(cache)
    cache.touch()
    with pytest.raises(UserError, match=str(cache)):
        TokenTable.cached("key", lambda: iter(BLOCKS), 300)


def test_windows_of_records() -> None:
    rows = ["abc", ("de", ("f", "g")), None, "hijk", "l"]
    records = Records("train", lambda: iter(rows))
    assert [*records.windows(4)] == [(0, rows[:2]), (2, rows[2:4]), (4, rows[4:])]
    assert [*records.windows(4, 2)] == [(2, rows[2:4]), (4, rows[4:])]


@pytest.mark.parametrize("count", [1, 3, 20])
def test_items_are_computed_ahead(count: int) -> None:
    done: list[int] = []

    def items() -> Iterator[int]:
        for number in range(9):
            done.append(number)
            yield number

    found = ahead(items(), count)
    assert next(found) == 0
    assert [*found] == [*range(1, 9)] == done[1:]
    with pytest.raises(UserError, match="bad"):
        [*ahead(map(_fail, range(3)), count)]


def _fail(number: int) -> int:
    raise UserError("bad")
