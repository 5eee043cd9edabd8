"""GLUE and SuperGLUE as text-to-text problems as in T5 (Raffel et al. 2020): prompts, outputs, their meaning."""

from __future__ import annotations

import re

from ..data.glue import GlueExample

# Words that do not distinguish referents in WSC.
_DETERMINERS = frozenset(
    {"a", "an", "each", "every", "few", "her", "his", "many", "much", "my", "our", "some", "that", "the", "their"}
    | {"these", "this", "those", "which", "whose", "your"}
)


def prompt(example: GlueExample) -> str:
    """The name of the task, then each text after its name: "qnli question: Who? sentence: Ann did."

    For WSC the text with the pronoun between asterisks, as in T5, without the candidate.
    """
    task = example.task.name
    if task == "wsc":
        return _one_line(f"wsc: {example.texts['text']}")
    return _one_line(" ".join([task, *(f"{name}: {_clean(task, example.texts[name])}" for name in example.task.texts)]))


def target(example: GlueExample) -> str:
    """The label word, the score to the nearest 0.2, the first answer, or the referent; "" if the label is hidden."""
    if not example.is_labeled:
        return ""
    if example.answers:
        return _one_line(example.answers[0])
    if example.task.name == "wsc":
        return example.texts["referent"]
    label = example.label or 0
    return example.task.labels[int(label)] if example.task.labels else f"{round(label * 5) / 5:.1f}"


def training_pairs(example: GlueExample) -> list[tuple[str, str]]:
    """The (prompt, target) pairs to train on: of a query of ReCoRD one for each correct answer.

    WSC gives only examples with the correct referent: the model writes the referent, so others teach nothing.
    """
    if example.task.name == "wsc" and example.label == 0:
        return []
    return [(prompt(example), text) for text in map(_one_line, example.answers or [target(example)])]


def read_label(example: GlueExample, text: str) -> int | float | str | None:
    """The prediction that the output `text` means; None if it is not a label, which counts as wrong.

    A class has to be exactly a label word, the score of STS-B a number from 0 to 5. For WSC the class is whether the
    words of the text are among those of the referent, or the reverse; an empty text is no label. For ReCoRD the
    prediction is the text.
    """
    text, labels = _one_line(text), example.task.labels
    if example.task.name == "record":
        return text
    if example.task.name == "wsc":
        referent = example.texts["referent"]
        words, wanted = _words(text), _words(referent)
        # A possessive is another referent: "Bob", "Bob's hat".
        is_same = ("'" in text) == ("'" in referent) and bool(wanted) and (words <= wanted or wanted <= words)
        return int(is_same) if words else None
    if labels:
        return labels.index(text) if text in labels else None
    return float(text) if re.fullmatch(r"\d+(\.\d*)?", text, re.ASCII) and float(text) <= 5 else None


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _clean(task: str, text: str) -> str:
    """Without the markup of MultiRC, and with the highlights of ReCoRD as sentences."""
    if task == "multirc":
        return re.sub(r"</?b>", "", text.replace("<br>", " "))
    if task == "record":
        text = re.sub(r"([.?!\"'])\n@highlight\n", r"\1 ", text)
        return text.replace("\n@highlight\n", ". ")
    return text


def _words(text: str) -> set[str]:
    """The words in lower case, without determiners."""
    return {*text.lower().split()} - _DETERMINERS
