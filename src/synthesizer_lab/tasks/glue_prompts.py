"""GLUE and SuperGLUE as text-to-text problems as in T5 (Raffel et al. 2020): prompts, outputs, their meaning."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from ..data.glue import GlueExample
from ..data.tokenizer import encode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast as Tokenizer

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
    text names the referent of the example; an empty text is no label. For ReCoRD the prediction is the text.
    """
    text, labels = _one_line(text), example.task.labels
    if example.task.name == "record":
        return text
    if example.task.name == "wsc":
        return int(_same_referent(text, example.texts["referent"])) if _words(text) else None
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


def _same_referent(text: str, referent: str) -> bool:
    """Whether the words of one are among those of the other. A possessive is another referent: "Bob", "Bob's hat"."""
    words, wanted = _words(text), _words(referent)
    if any("'" in word for word in words) != any("'" in word for word in wanted):
        return False
    return bool(words and wanted) and (words <= wanted or wanted <= words)


def possible_outputs(example: GlueExample) -> set[str]:
    """All outputs that may be written for an example, or at least the longest one."""
    entities, referent = example.texts.get("entities", ""), example.texts.get("referent", "")
    return {target(example), referent, "5.0", *entities.split(", "), *example.task.labels, *example.answers}


def short_prompt(example: GlueExample, tokenizer: Tokenizer, max_length: int) -> str:
    """The prompt without the end of its longest text, so that it has at most `max_length` tokens if possible."""
    longest = max(example.task.texts, key=lambda name: len(example.texts[name]))
    text = example.texts[longest]
    while True:
        source = prompt(replace(example, texts={**example.texts, longest: text}))
        over = len(encode(tokenizer, [source])[0]) - max_length
        if over <= 0 or not text:
            return source
        # The start of the first token over the limit. (The byte tokens of one character share their offsets.)
        starts = [start for start, _ in tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).offsets]
        text = text[: starts[-over]].rstrip() if over < len(starts) else ""
