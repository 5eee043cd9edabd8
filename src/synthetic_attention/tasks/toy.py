"""A toy parallel corpus, made up here: numbers in English and German words.

    python -m synthetic_attention.tasks.toy FOLDER [--train 400] [--held-out 40] [--seed 1]

German says the units before the tens, so a model has to learn a little reordering.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

__all__ = ["write_toy_corpus"]

_ONES = {
    "en": ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    "de": ("null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"),
}
_TEENS = {
    "en": ("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
    "de": ("elf", "zwölf", "dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn"),
}
_TENS = {
    "en": ("ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"),
    "de": ("zehn", "zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"),
}
_SIGNS = {"+": "plus", "-": "minus"}


def _number(value: int, language: str) -> str:
    tens, units = divmod(value, 10)
    if not tens:
        return _ONES[language][units]
    if not units:
        return _TENS[language][tens - 1]
    if tens == 1:
        return _TEENS[language][units - 1]
    if language == "en":
        return f"{_TENS['en'][tens - 1]} {_ONES['en'][units]}"
    return f"{'ein' if units == 1 else _ONES['de'][units]} und {_TENS['de'][tens - 1]}"


def _sentence(rng: random.Random) -> tuple[str, str]:
    numbers = [rng.randrange(100) for _ in range(rng.randint(1, 4))]
    signs = [rng.choice("+-") for _ in numbers[1:]]
    sides = []
    for language in ("en", "de"):
        words = [_number(numbers[0], language)]
        for sign, value in zip(signs, numbers[1:], strict=True):
            words += [_SIGNS[sign], _number(value, language)]
        sides.append(" ".join(words))
    return sides[0], sides[1]


def write_toy_corpus(folder: Path, train: int = 400, held_out: int = 40, seed: int = 1) -> None:
    """Write {train,valid,test}.{en,de} of distinct sentences into `folder`, which is made if it is not there."""
    rng = random.Random(seed)
    pairs: dict[str, str] = {}
    while len(pairs) < train + 2 * held_out:
        pairs.update([_sentence(rng)])
    sentences = list(pairs.items())
    sizes = {"train": train, "valid": held_out, "test": held_out}
    folder.mkdir(parents=True, exist_ok=True)
    for split, size in sizes.items():
        chosen, sentences = sentences[:size], sentences[size:]
        for side, language in enumerate(("en", "de")):
            text = "".join(f"{pair[side]}\n" for pair in chosen)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")


def _main() -> None:
    parser = argparse.ArgumentParser(description="Write a toy parallel corpus: numbers in English and German words.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=400)
    parser.add_argument("--held-out", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    write_toy_corpus(options.folder, options.train, options.held_out, options.seed)


if __name__ == "__main__":
    _main()
