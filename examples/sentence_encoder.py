"""Replace heads of a sentence encoder, and compare it with the original: STS-B's Spearman correlation and time.

python examples/sentence_encoder.py FOLDER --text lines.txt --pairs STS-B/dev.tsv --budget 0.5 --output half
"""

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from scipy.stats import spearmanr
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from synthesizer_lab.benchmark.harness import about, time_turns
from synthesizer_lab.heads.run import Conversion, convert_to
from synthetic_attention import convert

parser = argparse.ArgumentParser()
parser.add_argument("model", help="folder of a BERT without a head, with its tokenizer")
parser.add_argument("--text", type=Path, required=True, help="a sentence per line, to calibrate and distill on")
parser.add_argument("--pairs", type=Path, required=True, help="dev.tsv of STS-B")
parser.add_argument("--output", type=Path, required=True)
parser.add_argument("--synthesizer", choices=["random", "factorized_random", "dense"], default="random")
for name, default in (("budget", 0.5), ("distill-steps", 100), ("examples", 400), ("max-length", 256), ("seed", 0)):
    parser.add_argument(f"--{name}", type=type(default), default=default)
args = parser.parse_args()


@torch.no_grad()
def encode(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """(B, d): the mean of the last hidden states of the real tokens."""
    mask = inputs["attention_mask"][..., None]
    return (model(**inputs).last_hidden_state * mask).sum(1) / mask.sum(1)


def spearman(model: Any) -> float:
    """100 times the rank correlation of cosine similarity and score."""
    rows = [line.split("\t") for line in args.pairs.read_text(encoding="utf-8").splitlines()[1:]]
    similarities: list[float] = []
    for start in range(0, len(rows), 64):
        sides = zip(*(row[7:9] for row in rows[start : start + 64]), strict=True)
        tokens = (tokenizer(list(side), padding=True, truncation=True, return_tensors="pt") for side in sides)
        first, second = (encode(model, dict(each)) for each in tokens)
        similarities += torch.cosine_similarity(first, second).tolist()
    return 100 * float(spearmanr(similarities, [float(row[9]) for row in rows]).statistic)


# Repeated, it measures the saved model again.
if not (args.output / "model.safetensors").exists():
    how = Conversion(
        synthesizer=args.synthesizer,
        text=args.text,
        examples=args.examples,
        batch_tokens=512,
        budget=args.budget,
        distill_steps=args.distill_steps,
        max_length=args.max_length,
        seed=args.seed,
    )
    convert_to(args.model, args.output, how, report=partial(print, file=sys.stderr))
models = {
    "original": AutoModel.from_pretrained(args.model).eval(),
    # The original's weights in our layers: what else differs in time.
    "vanilla": convert(args.model, max_length=args.max_length).eval(),
    "converted": AutoModel.from_pretrained(args.output),
}
tokenizer: Any = AutoTokenizer.from_pretrained(args.output)
result: dict[str, Any] = about()
result["spearman"] = {name: round(spearman(each), 2) for name, each in models.items()}
for length in (args.max_length // 8, args.max_length // 2, args.max_length):
    ids = torch.randint(len(tokenizer), (16, length))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    times = time_turns({name: partial(encode, each, inputs) for name, each in models.items()}, repeats=9)
    result[f"milliseconds, 16 x {length} tokens"] = {name: round(each[0][1], 1) for name, each in times.items()}
print(json.dumps(result, indent=2))
