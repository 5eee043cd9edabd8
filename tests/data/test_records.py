"""Records in windows, and items that are computed ahead."""

from collections.abc import Iterator

import pytest

from synthesizer_lab.data.records import Records, ahead
from synthesizer_lab.errors import UserError


def test_windows_of_records() -> None:
    rows = ["abc", ("de", ("f", "g")), None, "hijk", "l"]
    records = Records("train", lambda: iter(rows), list)
    assert [*records.windows(4)] == [(0, rows[:2]), (2, rows[2:4]), (4, rows[4:])]
    assert [*records.windows(4, 2)] == [(2, rows[2:4]), (4, rows[4:])]


@pytest.mark.parametrize("count", [1, 3, 20])
def test_items_are_computed_ahead(count: int) -> None:
    def items() -> Iterator[int]:
        yield from range(9)
        raise UserError("bad")

    found = ahead(items(), count)
    assert [next(found) for _ in range(9)] == [*range(9)]
    with pytest.raises(UserError, match="bad"):
        next(found)
