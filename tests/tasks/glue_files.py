"""Small files of GLUE and SuperGLUE in their official layouts, with sentences of our own."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WORDS = ("tea", "rain", "bread", "wind", "stone", "light", "river", "dust")
_PAIR = ("index", "sentence1", "sentence2", "label")
_MNLI = ("index", "promptID", "pairID", "genre", "sentence1_parse", "sentence1", "sentence2", "label1", "gold_label")
# Of each task the folder and the header.
HEADERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "cola": ("CoLA", ()),
    "sst2": ("SST-2", ("sentence", "label")),
    "mrpc": ("MRPC", ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")),
    "stsb": ("STS-B", ("index", "genre", "sentence1", "sentence2", "score")),
    "qqp": ("QQP", ("id", "qid1", "qid2", "question1", "question2", "is_duplicate")),
    "mnli": ("MNLI", _MNLI),
    "qnli": ("QNLI", ("index", "question", "sentence", "label")),
    "rte": ("RTE", _PAIR),
    "wnli": ("WNLI", _PAIR),
}
_CLASSES: dict[str, tuple[str, ...]] = {
    "mnli": ("entailment", "neutral", "contradiction"),
    **dict.fromkeys(("qnli", "rte"), ("entailment", "not_entailment")),
}


def _sentence(number: int) -> str:
    return f"the {WORDS[number % 8]} of {WORDS[number // 8 % 8]}"


def glue_row(task: str, number: int) -> tuple[str, ...]:
    """Row `number` of a file, its label included; classes take turns."""
    classes = _CLASSES.get(task, ("0", "1"))
    label, one, two = classes[number % len(classes)], _sentence(number), _sentence(number + 3)
    return {
        "cola": ("src", label, "" if label == "1" else "*", one),
        "sst2": (one, label),
        "mrpc": (label, "1", "2", one, f'{two} "'),
        "stsb": (str(number), "main", one, two, f"{number % 6 * 0.9:.3f}"),
        "mnli": (str(number), "1", "1n", "fiction", "( )", one, two, label, label),
        "qqp": (str(number), "1", "2", f"{one}?", f"{two}?", label),
        "qnli": (str(number), f"{one}?", two, label),
        "rte": (str(number), one, two, label),
        "wnli": (str(number), one, two, label),
    }[task]


def write_glue(data: Path, train: int = 12, valid: int = 6, tasks: Sequence[str] = tuple(HEADERS)) -> Path:
    """Write train and dev files of tasks; MNLI's dev_mismatched has one example more than its dev_matched."""
    for task in tasks:
        folder, header = HEADERS[task]
        sizes = {"train": train, "dev": valid}
        if task == "mnli":
            sizes = {"train": train, "dev_matched": valid, "dev_mismatched": valid + 1}
        for stem, size in sizes.items():
            rows = [glue_row(task, number + (0 if stem == "train" else 5)) for number in range(size)]
            lines = ["\t".join(row) + "\n" for row in (header, *rows) if row]
            _write(data / folder / f"{stem}.tsv", ("\ufeff" if task == "mrpc" else "") + "".join(lines))
    return data


def superglue_row(task: str, number: int) -> dict[str, Any]:
    """Object `number` of a file; classes take turns."""
    one, two, yes = _sentence(number), _sentence(number + 3), number % 2 == 1
    choices = [[{"text": WORDS[n], "idx": n, "label": int(n == i)} for n in range(3)] for i in range(2)]
    questions = [{"question": f"{two}?", "idx": i, "answers": choices[i]} for i in range(2)]
    spans = [{"start": 0, "end": 2}, {"start": 8, "end": 10}]
    answers = [{"text": "Bob", **spans[1]}, {"text": "Ann", **spans[0]}][yes:]
    query = {"query": f"@placeholder saw {one}", "idx": number, "answers": answers}
    target = {"span1_text": one, "span1_index": 0, "span2_text": "it", "span2_index": 6}
    rows: dict[str, dict[str, Any]] = {
        "boolq": {"question": f"is {one}", "passage": two, "label": yes},
        "cb": {"premise": one, "hypothesis": two, "label": ("entailment", "contradiction", "neutral")[number % 3]},
        "copa": {"premise": one, "choice1": "a", "choice2": "b", "question": "cause", "label": int(yes)},
        "multirc": {"passage": {"text": f"<b>Sent 1: </b>{one}<br>", "questions": questions}},
        "record": {"passage": {"text": "Ann met Bob.", "entities": spans}, "qas": [query]},
        "rte": {"premise": one, "hypothesis": two, "label": "not_entailment" if yes else "entailment"},
        "wic": {"word": WORDS[number % 8], "sentence1": one, "sentence2": two, "label": yes},
        "wsc": {"text": f"{one} shone because it was wet", "target": target, "label": yes},
    }
    return {**rows[task], "idx": number}


_FOLDERS = {"boolq": "BoolQ", "cb": "CB", "copa": "COPA", "multirc": "MultiRC", "record": "ReCoRD", "rte": "RTE"}
_FOLDERS |= {"wic": "WiC", "wsc": "WSC"}


def write_superglue(data: Path, train: int = 12, valid: int = 6, tasks: Sequence[str] = tuple(_FOLDERS)) -> Path:
    """Write train and val files of tasks; of MultiRC an object is a passage of six answers."""
    for task in tasks:
        for stem, size, first in (("train", train, 0), ("val", valid, 5)):
            rows = [superglue_row(task, number + first) for number in range(size)]
            _write(data / _FOLDERS[task] / f"{stem}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    return data


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
