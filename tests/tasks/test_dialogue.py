"""The task of dialogue: what is read, what is kept of it, what is scored with what."""

import json
from pathlib import Path

import pytest

from synthesizer_lab.data.source import Source
from synthesizer_lab.data.tokenizer import decode
from synthesizer_lab.tasks import UserError
from synthesizer_lab.tasks.dialogue import ConvAI2, Dialogue, Turn
from synthesizer_lab.tasks.large import new_tokenizer
from synthesizer_lab.tasks.seq2seq import TextPairs

TEXT = """\
1 your persona: i grow beans .
2 partner's persona: i fix clocks .
3 hi !\thello .
4 do you cook ?\tonly beans .
5 why ?\ti grow them .
"""
TURN = Turn("1.3", ("hi !", "hello .", "why ?"), ("so .", "hm ."), ("i grow beans .",), ("i fix clocks .",))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("train.txt", "valid.txt"):
        (folder / name).write_text(TEXT, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("task", "source"),
    [
        (Dialogue(), "persona: i grow beans . partner: hi ! self: hello . partner: why ? reply:"),
        (Dialogue(history=2), "persona: i grow beans . self: hello . partner: why ? reply:"),
        (Dialogue(history=0, persona="partner"), "persona: i fix clocks . reply:"),
        (Dialogue(history=1, persona="both"), "persona: i grow beans . persona: i fix clocks . partner: why ? reply:"),
        (Dialogue(history=None, persona="none"), "partner: hi ! self: hello . partner: why ? reply:"),
    ],
)
def test_persona_and_history_are_read(task: Dialogue, source: str) -> None:
    assert task.source(TURN) == source
    assert task.source(Turn("1.1", (), ("hello .",))) == "reply:"


def test_both_formats_are_read(data: Path) -> None:
    split = Dialogue().records(data, "valid").load()
    assert (split.name, split.targets) == ("valid", ["hello .", "only beans .", "i grow them ."])
    assert split.sources[0] == "persona: i grow beans . partner: hi ! reply:"
    row = {"persona": ["f ."], "history": ["a", "b", "c"], "reply": ["d", "e"]}
    (data / "test.jsonl").write_text(json.dumps(row), encoding="utf-8")
    split = Dialogue().records(data, "test").load()
    assert split.sources == ["persona: f . partner: a self: b partner: c reply:"]
    assert (split.targets, split.references_of([0])) == (["d"], [("d", "e")])
    (data / "test.jsonl").unlink()
    (data / "test.txt").write_text(f"{TEXT}oops\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"test\.txt, line 6: no number before the text"):
        Dialogue().records(data, "test").load()
    assert Dialogue(skip_bad_lines=True).records(data, "test").load().skipped == 1


def test_what_does_not_fit_is_the_oldest(data: Path) -> None:
    task = Dialogue()
    tokenizer = new_tokenizer(task, task.records(data, "train").load(), 260, 64)
    long = Turn("1.1", tuple(f"utterance {n}" for n in range(5)), ("r",), ("fact",))
    split = TextPairs("x", [task.source(turn) for turn in (long, TURN)], ["r", "so ."])
    # A token is a byte here; </s> is one more.
    short = "persona: fact self: utterance 3 partner: utterance 4 reply:"
    pairs = task.encode(split, tokenizer, len(short) + 10, "truncate")
    assert decode(tokenizer, [pairs[0][0].tolist()]) == [short]
    assert (len(pairs), pairs.truncated) == (2, 2)
    # A source that is too long with a single utterance is cut as any text is.
    pairs = task.encode(split, tokenizer, 12, "truncate")
    assert decode(tokenizer, [pairs[0][0].tolist()]) == ["persona: fa"]
    with pytest.raises(UserError, match="--on-long truncate"):
        task.encode(split, tokenizer, len(short) + 1)


def test_word_vectors_are_found_from_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    task = Dialogue(vectors="vectors.txt")
    assert task.vectors == str(tmp_path / "vectors.txt")
    with pytest.raises(UserError, match=r"vectors\.txt: no such file of word vectors"):
        task.check_requirements()


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
    turns = _read(tmp_path / "a.txt", "\n\n".join(("1 __SILENCE__\ta", "2 b\tc", "3 __SILENCE__\td", "4 e\tf")))[0]
    assert [turn.history for turn in turns] == [(), ("a", "b"), ("a", "b", "c", ""), ("a", "b", "c", "", "d", "e")]
    assert [Dialogue(history=3).source(turn) for turn in turns] == [
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
