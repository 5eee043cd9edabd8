"""The task of dialogue: what is read, what is kept of it, what is scored with what."""

import json
from pathlib import Path

import pytest

from synthesizer_lab.data.persona import Turn
from synthesizer_lab.data.tokenizer import decode
from synthesizer_lab.tasks import UserError
from synthesizer_lab.tasks.dialogue import Dialogue
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
    split = Dialogue().read(data, "valid")
    assert (split.name, split.targets) == ("valid", ["hello .", "only beans .", "i grow them ."])
    assert split.sources[0] == "persona: i grow beans . partner: hi ! reply:"
    row = {"persona": ["f ."], "history": ["a", "b", "c"], "reply": ["d", "e"]}
    (data / "test.jsonl").write_text(json.dumps(row), encoding="utf-8")
    split = Dialogue().read(data, "test")
    assert split.sources == ["persona: f . partner: a self: b partner: c reply:"]
    assert (split.targets, split.references_of([0])) == (["d"], [("d", "e")])
    (data / "test.jsonl").unlink()
    (data / "test.txt").write_text(f"{TEXT}oops\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"test\.txt, line 6: no number before the text"):
        Dialogue().read(data, "test")
    assert Dialogue(skip_bad_lines=True).read(data, "test").skipped == 1


def test_what_does_not_fit_is_the_oldest(data: Path) -> None:
    task = Dialogue()
    tokenizer = task.train_tokenizer(task.read(data, "train"), 260, 64)
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
