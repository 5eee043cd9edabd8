"""Whether translation runs generate the same tokens in our loop, in batches and one by one, as in transformers' loop.

python benchmarks/same_tokens.py runs/translation-en-de/*/seed-0 --sources SENTENCES.en
"""

from __future__ import annotations

import argparse
from functools import partial
from operator import ne
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from synthetic_attention import generate


def outputs(call: Any, tokenizer: Any, sources: list[str], size: int) -> list[list[int]]:
    """The tokens of each source without padding, in batches of `size`."""
    found = []
    for start in range(0, len(sources), size):
        inputs = tokenizer(sources[start : start + size], padding=True, return_tensors="pt")
        found += [row[row != tokenizer.pad_token_id].tolist() for row in call(**inputs)]
    return found


def main() -> None:
    """Generate in all ways, and print how many outputs differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--sources", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sources = options.sources.read_text("utf-8").removesuffix("\n").split("\n")
    for run in options.runs:
        model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(run).eval(), AutoTokenizer.from_pretrained(run)
        for beams in (1, 4):
            search = {"num_beams": beams, "do_sample": False, "max_new_tokens": 100}
            loop, theirs = partial(generate, model, **search), partial(model.generate, **search)
            ours = outputs(loop, tokenizer, sources, 64)
            alone, other = (
                sum(map(ne, ours, outputs(call, tokenizer, sources, size))) for call, size in ((loop, 1), (theirs, 64))
            )
            what = f"{model.config.synthesizer}, {beams} beams, {len(sources)} outputs"
            print(f"{what}: {alone} differ one by one, {other} in transformers' loop", flush=True)


if __name__ == "__main__":
    main()
