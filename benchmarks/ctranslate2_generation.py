"""`synthesizer benchmark generation --task translation`, with the variants "ctranslate2" and "ctranslate2 int8".

Each engine has a process of its own, because two in one process slow each other down; the processes take turns.

pip install ctranslate2
python benchmarks/ctranslate2_generation.py --variants ctranslate2,random --layers 4 --width 128 --heads 4 --batch 1,8
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_context
from types import SimpleNamespace
from typing import Any

import torch

from synthesizer_lab.benchmark import generation
from synthesizer_lab.benchmark.generation import GenerationCase, generate_of, make_model
from synthesizer_lab.benchmark.harness import measurement, time_turns
from synthesizer_lab.cli import main

Engine = Callable[[GenerationCase], object]


@cache
def make_engine(name: str, first: GenerationCase, longest: int, threads: int) -> Engine:
    """The engine of a row of the table: marian, a synthesizer, ctranslate2, or its int8."""
    torch.set_num_threads(threads)
    if name.startswith("ctranslate2"):
        compute_type = "int8" if name.endswith("int8") else "float32"
        return make_ctranslate2(make_model(first, "marian", longest), compute_type, threads)
    loop = generate_of(make_model(first, name, longest))
    return lambda case: loop(**case.inputs())


def generate(case: GenerationCase, *arguments: Any) -> None:
    """Generate what a case says with the engine of these arguments."""
    make_engine(*arguments)(case)


def make_ctranslate2(model: Any, compute_type: str, threads: int) -> Engine:
    """CTranslate2 with the weights of a Marian model."""
    import ctranslate2
    from ctranslate2.converters.converter import Converter
    from ctranslate2.converters.transformers import MarianMTLoader

    # Marian's vocabulary ends with the padding, which the loader removes.
    tokens = [*(f"token{index}" for index in range(model.config.vocab_size - 1)), "<pad>"]
    tokenizer = SimpleNamespace(
        get_vocab=lambda: {token: index for index, token in enumerate(tokens)}, eos_token=tokens[2], unk_token=tokens[1]
    )

    class Random(Converter):
        def _load(self) -> Any:
            with torch.no_grad():
                return MarianMTLoader()(model, tokenizer)

    with tempfile.TemporaryDirectory() as folder:
        Random().convert(folder, force=True)
        translator = ctranslate2.Translator(folder, compute_type=compute_type, intra_threads=threads, inter_threads=1)

    def translate(case: GenerationCase) -> None:
        inputs = case.inputs()
        lengths = inputs["attention_mask"].sum(1).tolist()
        rows = inputs["input_ids"].clamp(max=len(tokens) - 2).tolist()
        sources = [[tokens[index] for index in row[:length]] for row, length in zip(rows, lengths, strict=True)]
        count = case.new_tokens
        found = translator.translate_batch(
            sources, beam_size=case.num_beams, min_decoding_length=count, max_decoding_length=count, max_batch_size=0
        )
        assert all(len(each.hypotheses[0]) == count for each in found)

    return translate


def measure(cases: Sequence[GenerationCase], variants: Sequence[str], repeats: int = 3) -> list[dict[str, Any]]:
    """As `measure_generation`, with each engine in a process of its own."""
    longest, found = max(case.longest for case in cases), list[dict[str, Any]]()
    pools = {name: ProcessPoolExecutor(1, get_context("spawn")) for name in ("marian", *variants)}

    def turn(name: str, case: GenerationCase) -> None:
        pools[name].submit(generate, case, name, cases[0], longest, torch.get_num_threads()).result()

    for case in cases:
        times = time_turns({name: partial(turn, name, case) for name in pools}, repeats, warmup=1)
        found += [measurement(case, name, milliseconds=each, ratio=ratio) for name, (each, ratio) in times.items()]
    return found


if __name__ == "__main__":
    generation.measure_generation = measure
    main(["benchmark", "generation", "--task", "translation", *sys.argv[1:]])
