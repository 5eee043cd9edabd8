"""Translation by CTranslate2, Marian and our models, all with random weights of the same size.

Each engine has a process of its own, because two in one process slow each other down; the processes take turns.

pip install ctranslate2
python benchmarks/ctranslate2_generation.py --layers 4 --width 128 --heads 4 --batch 1,8,64 --num-beams 1,4
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import torch
from rich.console import Console

from synthesizer_lab.benchmark.generation import GenerationCase, make_contenders
from synthesizer_lab.benchmark.harness import Measurement, time_turns
from synthesizer_lab.benchmark.tables import tables

Engine = Callable[[GenerationCase], object]


def make_engine(name: str, first: GenerationCase, longest: int, threads: int) -> Engine:
    """The engine of a row of the table: marian, a synthesizer, ctranslate2, or its int8."""
    torch.set_num_threads(threads)
    is_other = name.startswith("ctranslate2")
    contenders = make_contenders(first, [] if is_other or name == "marian" else [name], longest)
    if is_other:
        compute_type = "int8" if name.endswith("int8") else "float32"
        return make_ctranslate2(contenders["marian"].model, compute_type, threads)
    return lambda case: contenders[name](case, case.prompts())


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
        inputs = case.prompts()
        lengths = inputs["attention_mask"].sum(1).tolist()
        rows = inputs["input_ids"].clamp(max=len(tokens) - 2).tolist()
        sources = [[tokens[index] for index in row[:length]] for row, length in zip(rows, lengths, strict=True)]
        count = case.new_tokens
        found = translator.translate_batch(
            sources, beam_size=case.num_beams, min_decoding_length=count, max_decoding_length=count, max_batch_size=0
        )
        assert all(len(each.hypotheses[0]) == count for each in found)

    return translate


def serve(connection: Connection, *arguments: Any) -> None:
    """Generate what the other process asks for, until it closes the connection."""
    engine = make_engine(*arguments)
    connection.send(None)
    with suppress(EOFError):
        while True:
            engine(connection.recv())
            connection.send(None)


def main() -> None:
    """Start the engines, time them in turns, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default="marian,ctranslate2,ctranslate2 int8,random,vanilla,random+vanilla")
    for name, default in (("batch", "1,8,64"), ("num-beams", "1,4"), ("prompt", "24,12-36")):
        parser.add_argument(f"--{name}", default=default)
    numbers = {"layers": 4, "width": 128, "heads": 4, "vocabulary": 10000, "new-tokens": 24, "repeats": 7, "threads": 2}
    for name, number in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=number)
    options = parser.parse_args()
    sizes = {name: getattr(options, name) for name in ("layers", "width", "heads", "vocabulary", "new_tokens")}
    cases = []
    for prompt, beams, batch in product(
        *(each.split(",") for each in (options.prompt, options.num_beams, options.batch))
    ):
        low, _, high = prompt.partition("-")
        each: dict[str, Any] = {"prompt": (int(low), int(high or low)), "num_beams": int(beams), "batch": int(batch)}
        cases.append(GenerationCase(task="translation", **each, **sizes))
    longest = max(case.prompt[1] + case.new_tokens for case in cases)
    context = multiprocessing.get_context("spawn")
    connections = {}
    for name in options.engines.split(","):
        connections[name], theirs = context.Pipe()
        arguments = (theirs, name, cases[0], longest, options.threads)
        context.Process(target=serve, args=arguments, daemon=True).start()
        # So that `recv` ends if the process does.
        theirs.close()
    for name, connection in connections.items():
        try:
            connection.recv()
        except EOFError:
            sys.exit(f"{name} did not start; its error is above")
    found = []
    for case in cases:
        turns = {
            name: lambda engine=engine, case=case: (engine.send(case), engine.recv())
            for name, engine in connections.items()
        }
        times = time_turns(turns, options.repeats, warmup=1)
        found += [Measurement(name, case, False, *times[name]) for name in turns]
    for connection in connections.values():
        connection.close()
    for table in tables(found):
        Console().print(table)


if __name__ == "__main__":
    main()
