"""Rows of a comparison as they are written on the command line."""

import pytest

from synthetic_attention.compare.rows import Row, closest_d_ff, parse_rows, parse_seeds
from synthetic_attention.tasks import UserError


def test_rows_are_separated_by_commas_or_given_apart() -> None:
    rows = [Row("vanilla", "vanilla"), Row("random+vanilla", "random+vanilla"), Row("dense", "dense")]
    assert parse_rows(["vanilla, random+vanilla,dense"]) == rows
    assert parse_rows(["vanilla", "random+vanilla,dense"]) == rows


def test_a_row_may_have_settings_of_its_own() -> None:
    (row,) = parse_rows([" random @ num_heads = 2@random.std=0.1 "])
    assert row == Row("random@num_heads=2@random.std=0.1", "random", ("num_heads=2", "random.std=0.1"))
    assert row.folder == row.label


def test_control_rows_match_random_vanilla_or_what_they_say() -> None:
    rows = parse_rows(["vanilla-control,dense-control@match=dense+vanilla@num_heads=2"])
    assert rows[0] == Row("vanilla-control", "vanilla", (), "random+vanilla")
    assert rows[1].synthesizer == "dense"
    assert (rows[1].match, rows[1].overrides) == ("dense+vanilla", ("num_heads=2",))


def test_brackets_keep_commas_together_and_folders_are_safe() -> None:
    lists = parse_rows(["{encoder: random, decoder: [dense, vanilla]},[dense, random]@random.std=1,vanilla"])
    assert [row.synthesizer for row in lists] == [
        "{encoder: random, decoder: [dense, vanilla]}",
        "[dense, random]",
        "vanilla",
    ]
    assert lists[0].folder == "encoder_random_decoder_dense_vanilla"
    assert lists[1].folder == "dense_random_@random.std=1"
    assert parse_rows(["../../x"])[0].folder == "x"


@pytest.mark.parametrize(
    "label", ["random@num_heads=2", "{encoder: random, decoder: dense}", "dense-control@match=a+b"]
)
def test_a_label_is_read_as_the_same_row(label: str) -> None:
    (row,) = parse_rows([label])
    assert row.label == label
    assert parse_rows([row.label]) == [row]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected SYNTHESIZER or SYNTHESIZER@KEY=VALUE"),
        ("vanilla,,dense", "got the row ''"),
        ("-control", "got the row '-control'"),
        ("random@", "expected KEY=VALUE after each @"),
        ("random@num_heads", "expected KEY=VALUE after each @"),
        ("random@num_heads=", "expected KEY=VALUE after each @"),
        ("random@=2", "expected KEY=VALUE after each @"),
        ("random@match=dense", "only a row SYNTHESIZER-control has it"),
        ("vanilla-control@d_ff=9", "the size of a control row follows from its match"),
        ("random@steps=9", "it is the same for all rows"),
        ("random@vocab_size=9", "it is the same for all rows"),
        ("vanilla,dense,vanilla", "expected each row once"),
        ("[dense],dense", r"got rows '\[dense\]' and 'dense', whose folders would both be 'dense'"),
        ("{encoder: random", "as many closing brackets as opening ones"),
        ("random]", "as many closing brackets as opening ones"),
    ],
)
def test_what_is_no_row_is_said(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_rows([text])


def test_no_rows_are_refused() -> None:
    with pytest.raises(UserError, match="got no synthesizers"):
        parse_rows([])


def test_seeds() -> None:
    assert parse_seeds("0, 2,1") == [0, 2, 1]
    for text in ("", "0,", "zero", "1.5"):
        with pytest.raises(UserError, match="expected whole numbers separated by commas"):
            parse_seeds(text)
    with pytest.raises(UserError, match="expected each seed once"):
        parse_seeds("1,2,1")


@pytest.mark.parametrize(("target", "d_ff"), [(1007, 1), (1010, 1), (1011, 2), (1707, 101), (1710, 101), (1711, 102)])
def test_the_closest_d_ff(target: int, d_ff: int) -> None:
    assert closest_d_ff(lambda width: 1000 + 7 * width, target) == d_ff


def test_what_cannot_be_that_small_is_said() -> None:
    with pytest.raises(UserError, match="with d_ff=1 it has 1,007 parameters already; expected at most 1,006"):
        closest_d_ff(lambda width: 1000 + 7 * width, 1006)
