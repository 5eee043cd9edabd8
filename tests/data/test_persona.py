"""ConvAI2's persona text, and JSON lines of dialogue."""

from pathlib import Path

import pytest

from synthesizer_lab.data.persona import ConvAI2, Turn
from synthesizer_lab.data.source import Source
from synthesizer_lab.tasks import UserError
from synthesizer_lab.tasks.dialogue import Dialogue

BOTH = """\
1 your persona: i grow 30 kinds of beans .
2 your persona: my boat is called zoë .
3 partner's persona: i repair clocks .
4 hi there !\thello , do you like boats ?\t\tno way .|hello , do you like boats ?
5 only clocks .\tthen we sail by the clock .
1 partner's persona: i never sleep .
2 __SILENCE__\tgood evening .
3 good morning .\tis it ?
1 what's up ?\tthe sky .
"""


def _read(path: Path, text: str, skip_bad_lines: bool = False) -> tuple[list[Turn], int]:
    path.write_text(text, encoding="utf-8")
    turns = [*Source("x", (path,)).parse(ConvAI2().turns, skip_bad_lines)]
    return [turn for turn in turns if turn is not None], turns.count(None)


def test_personas_of_one_both_and_none(tmp_path: Path) -> None:
    turns = _read(tmp_path / "a.txt", BOTH)[0]
    assert [turn.id for turn in turns] == ["1.1", "1.2", "2.1", "2.2", "3.1"]
    first, second, silence, after, bare = turns
    assert first.persona == ("i grow 30 kinds of beans .", "my boat is called zoë .")
    assert first.partner_persona == second.partner_persona == ("i repair clocks .",)
    assert first.history == ("hi there !",)
    assert first.references == ("hello , do you like boats ?",)
    assert second.history == ("hi there !", "hello , do you like boats ?", "only clocks .")
    # Nothing of the first dialogue is left in the second, and silence is nothing that was said.
    assert (silence.persona, silence.partner_persona) == ((), ("i never sleep .",))
    assert (silence.history, silence.references) == ((), ("good evening .",))
    assert after.history == ("good evening .", "good morning .")
    assert (bare.persona, bare.partner_persona, bare.history) == ((), (), ("what's up ?",))


def test_silence_is_nothing_that_was_said_and_somebodys_turn(tmp_path: Path) -> None:
    lines = ("1 __SILENCE__\ta", "2 b\tc", "3 __SILENCE__\td", "4 e\tf")
    turns = _read(tmp_path / "a.txt", "\n\n".join(lines))[0]
    assert [turn.history for turn in turns] == [(), ("a", "b"), ("a", "b", "c", ""), ("a", "b", "c", "", "d", "e")]
    task = Dialogue(history=3)
    assert [task.source(turn) for turn in turns] == [
        "reply:",
        "self: a partner: b reply:",
        "self: a partner: b self: c reply:",
        "self: c self: d partner: e reply:",
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("hello\thi", "no number before the text"),
        ("4 hello", "no tab; expected 'utterance<TAB>reply'"),
        ("4 hello\t ", "the reply is blank"),
        ("3 hello\thi", "number 3 follows 3"),
    ],
)
def test_malformed_lines_are_named_or_counted(tmp_path: Path, line: str, message: str) -> None:
    good = "1 your persona: i whistle .\n2 a\tb\n3 c\td\n"
    path, text = tmp_path / "talk.txt", f"{good}{line}\n1 your persona: i sing .\n2 e\tf\n"
    with pytest.raises(UserError, match=f"talk.txt, line 4: {message}"):
        _read(path, text)
    parsed = _read(path, text, True)
    assert parsed[1] == 1
    assert [turn.references for turn in parsed[0]] == [("b",), ("d",), ("f",)]
    assert parsed[0][-1].persona == ("i sing .",)
    assert parsed[0][-1].history == ("e",)
