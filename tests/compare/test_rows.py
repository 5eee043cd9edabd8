"""Rows of a comparison as they are written on the command line."""

import pytest

from synthesizer_lab.compare.rows import Row, parse_rows
from synthesizer_lab.errors import UserError


@pytest.mark.parametrize(
    ("texts", "rows"),
    [
        (["vanilla, random+vanilla", "dense"], [Row(name, name) for name in ("vanilla", "random+vanilla", "dense")]),
        (
            [" random @ num_heads = 2@random.std=0.1 "],
            [Row("random@num_heads=2@random.std=0.1", "random", ("num_heads=2", "random.std=0.1"))],
        ),
        (["vanilla-control"], [Row("vanilla-control", "vanilla", (), "random+vanilla")]),
        (
            ["dense-control@match=dense+vanilla@num_heads=2"],
            [Row("dense-control@match=dense+vanilla@num_heads=2", "dense", ("num_heads=2",), "dense+vanilla")],
        ),
        (["random@from=none"], [Row("random@from=none", "random", scratch=True)]),
    ],
)
def test_rows_have_a_synthesizer_and_own_settings(texts: list[str], rows: list[Row]) -> None:
    assert parse_rows(texts) == rows


def test_brackets_keep_commas_together_and_folders_are_safe() -> None:
    texts = ["{encoder: random, decoder: [dense, vanilla]}", "[dense, random]@random.std=1", "../../x"]
    rows = parse_rows([",".join(texts).replace("[dense, random", "[dense,random")])
    assert [row.label for row in rows] == texts
    assert [row.synthesizer for row in rows] == [texts[0], "[dense,random]", "../../x"]
    assert [row.folder for row in rows] == ["encoder_random_decoder_dense_vanilla", "dense_random_@random.std=1", "x"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, "each key once") for text in ("random@", "@num_heads=2", "-control", "vanilla,")),
        ("random@match=dense", "SYNTHESIZER-control"),
        ("vanilla-control@d_ff=9", "d_ff"),
        ("random@from=elsewhere", "from=none"),
        ("[dense],dense", r"\[dense\], dense"),
    ],
)
def test_malformed_rows_are_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_rows([text])
