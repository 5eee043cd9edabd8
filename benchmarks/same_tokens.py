"""Whether translation runs generate the same tokens in our loop, in batches and one by one, as in transformers' loop.

python benchmarks/same_tokens.py runs/translation-en-de/*/seed-0 --sources SENTENCES.en --references SENTENCES.de
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import sacrebleu
import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from synthetic_attention import generate

# BLEU in both loops; how many outputs differ from ours in batches, and by how much their log probability at most.
COLUMNS = ("synthesizer", "search", "BLEU", "transformers", "differ: one by one", "differ: transformers", "Δ log p")


def outputs(call: Any, tokenizer: Any, sources: list[str], size: int) -> list[list[int]]:
    """The tokens of each source up to its end; batches of `size` sources of similar length."""
    order = sorted(range(len(sources)), key=lambda index: len(sources[index]))
    found: list[list[int]] = [[]] * len(sources)
    for start in range(0, len(order), size):
        indices = order[start : start + size]
        inputs = tokenizer([sources[index] for index in indices], padding=True, return_tensors="pt")
        for index, row in zip(indices, call(**inputs), strict=True):
            first, *tokens = row.tolist()
            end = tokens.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in tokens else None
            found[index] = [first, *tokens[:end]]
    return found


@torch.inference_mode()
def log_probability(model: Any, tokenizer: Any, source: str, tokens: list[int]) -> float:
    """Of an output, its first token aside."""
    logits = model(**tokenizer(source, return_tensors="pt"), decoder_input_ids=torch.tensor([tokens[:-1]])).logits
    return logits[0].log_softmax(-1).gather(1, torch.tensor(tokens[1:])[:, None]).sum().item()


def main() -> None:
    """Generate in all ways, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    for name in ("--sources", "--references"):
        parser.add_argument(name, type=lambda path: Path(path).read_text("utf-8").removesuffix("\n").split("\n"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    sources, references = options.sources, options.references
    table = Table(*COLUMNS, title=f"{len(sources)} sentences")
    for run in options.runs:
        model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(run).eval(), AutoTokenizer.from_pretrained(run)
        for beams in (1, 4):
            search = {"num_beams": beams, "do_sample": False, "max_new_tokens": 100}
            loop, loop_of_transformers = partial(generate, model, **search), partial(model.generate, **search)
            ours = outputs(loop, tokenizer, sources, 64)
            alone = outputs(loop, tokenizer, sources, 1)
            theirs = outputs(loop_of_transformers, tokenizer, sources, 64)
            texts = [tokenizer.batch_decode(rows, skip_special_tokens=True) for rows in (ours, theirs)]
            bleu = [f"{sacrebleu.corpus_bleu(hypotheses, [references]).score:.2f}" for hypotheses in texts]
            differences, other, score = [0.0], [], partial(log_probability, model, tokenizer)
            for rows in (alone, theirs):
                pairs = [(a, b, source) for a, b, source in zip(ours, rows, sources, strict=True) if a != b]
                other.append(str(len(pairs)))
                differences += [abs(score(source, a) - score(source, b)) for a, b, source in pairs]
            label = f"{beams} beams" if beams > 1 else "greedy"
            table.add_row(str(model.config.synthesizer), label, *bleu, *other, f"{max(differences):.1e}")
    Console().print(table)


if __name__ == "__main__":
    main()
