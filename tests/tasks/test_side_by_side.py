"""Examples of an evaluation, to read."""

from synthetic_attention.tasks.side_by_side import Scored, best_and_worst


def _outputs(count: int) -> list[Scored]:
    return [
        Scored(f"id{number}", "a source", ("one", "two"), f"output {number}", number / 10) for number in range(count)
    ]


def _headings(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("#")]


def test_the_best_and_the_worst_come_first() -> None:
    text = best_and_worst("test", "ROUGE-L", _outputs(1200), shown=2)
    assert _headings(text) == [
        "# test: best and worst of 1,200 by ROUGE-L",
        *("## Best", "### id1199: ROUGE-L 119.90", "### id1198: ROUGE-L 119.80"),
        *("## Worst", "### id0: ROUGE-L 0.00", "### id1: ROUGE-L 0.10"),
    ]
    block = text[text.index("### id1199") : text.index("### id1198")].splitlines()
    assert [line for line in block if line][1:] == [
        *("source", "~~~", "a source", "~~~", "reference 1", "~~~", "one", "~~~"),
        *("reference 2", "~~~", "two", "~~~", "output", "~~~", "output 1199", "~~~"),
    ]


def test_none_is_shown_twice() -> None:
    assert _headings(best_and_worst("test", "ROUGE-L", _outputs(3), shown=2))[1:] == [
        *("## Best", "### id2: ROUGE-L 0.20", "### id1: ROUGE-L 0.10", "## Worst", "### id0: ROUGE-L 0.00")
    ]
    assert "Worst" not in _headings(best_and_worst("test", "ROUGE-L", _outputs(2), shown=2))


def test_texts_are_shown_as_they_are() -> None:
    words = "ärger *no* <b> ~~~~ `code` " * 200
    text = best_and_worst("test", "ROUGE-L", [Scored("a", f"{words}\n{words}", ("",), "# title", 0.0)])
    lines = text.splitlines()
    # A fence is longer than any in its text.
    assert (lines.count("~~~~~"), lines.count("~~~")) == (2, 4)
    assert max(len(line) for line in lines) <= 110
    assert any(line.endswith("characters more)") for line in lines)
    shown = " ".join(lines[lines.index("~~~~~") + 1 :])
    assert shown.startswith(" ".join(words.split())[:1900])
    assert "# title" in lines
