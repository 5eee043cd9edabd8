"""Where the time of a decoding step goes, in this package's loop and in transformers', with random weights on a CPU.

python benchmarks/generation_step.py --layers 4 --width 128 --heads 4 --batch 64 --num-beams 4
"""

from __future__ import annotations

import argparse
import functools
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import EncoderDecoderCache, LogitsProcessorList

from synthetic_attention import SynthesizerAttention
from synthetic_attention.benchmark.generation import GenerationCase, make_contenders
from synthetic_attention.generation import attention, loop, step
from synthetic_attention.models import SynthesizerForConditionalGeneration, modeling

# The time of a function is without that of the functions of other parts that it calls.
PARTS: dict[str, list[tuple[Any, str]]] = {
    "self-attention": [
        (attention.SelfAttentionStep, "__call__"),
        (attention.LayerStep, "__call__"),
        (SynthesizerAttention, "forward"),
    ],
    "cross-attention": [(attention.CrossAttentionStep, "__call__"), (modeling.CrossAttention, "forward")],
    "feed-forward": [(step.BlockStep, "_add_feed_forward"), (modeling.MLP, "forward")],
    "norms, embeddings, masks": [(step.Decoder, "step"), (modeling.SynthesizerStack, "forward")],
    "vocabulary": [(step.Head, "__call__"), (SynthesizerForConditionalGeneration, "_loss_and_logits")],
    "scores": [(step.Head, "log_softmax"), (loop.Settings, "process"), (LogitsProcessorList, "__call__")],
    "search": [
        (loop, "_best_candidates"),
        (loop, "_best_tokens"),
        (loop.Beams, "advance"),
        (torch, "topk"),
        (torch, "argmax"),
    ],
    "reordering": [(step.Decoder, "reorder"), (EncoderDecoderCache, "reorder_cache")],
    "encoder, preparation": [(modeling._Encoder, "forward"), (step.Decoder, "__init__")],
}
# A part that counts as a whole, with all that it calls.
WHOLE = "encoder, preparation"


class Clock:
    """Seconds by part: of the functions that are running, the innermost one counts."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._running: list[str] = []
        self._since = time.perf_counter()

    def enter(self, part: str) -> None:
        """A part begins."""
        self._count()
        self._running.append(WHOLE if WHOLE in self._running else part)

    def leave(self) -> None:
        """The innermost part ends."""
        self._count()
        self._running.pop()

    def _count(self) -> None:
        now = time.perf_counter()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, as a part."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.enter(part)
            try:
                return function(*args, **kwargs)
            finally:
                self.leave()

        return call


def main() -> None:
    """Time the parts, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", default="random,vanilla")
    sizes = {"layers": 4, "width": 128, "heads": 4, "vocabulary": 10000, "new-tokens": 24, "batch": 64, "num-beams": 4}
    for name, number in {**sizes, "source": 24, "repeats": 5, "threads": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=number)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    numbers: dict[str, Any] = {name: getattr(options, name) for name in (key.replace("-", "_") for key in sizes)}
    case = GenerationCase(task="translation", prompt=(options.source, options.source), **numbers)
    contenders = make_contenders(case, options.variants.split(","), options.source + case.new_tokens)
    clock, columns = Clock(), {}
    for part, functions in PARTS.items():
        for home, name in functions:
            setattr(home, name, clock.timed(part, getattr(home, name)))
    for variant in options.variants.split(","):
        model = contenders[variant].model
        for label, generate in ((variant, loop.generate), (f"{variant}, transformers", type(model).generate)):
            inputs = case.prompts()
            found = []
            for _ in range(1 + options.repeats):
                clock.seconds.clear()
                start = time.perf_counter()
                generate(model, **inputs, max_new_tokens=case.new_tokens, num_beams=case.num_beams, do_sample=False)
                whole = time.perf_counter() - start
                found.append({**clock.seconds, "the rest": whole - sum(clock.seconds.values()), "all": whole})
            # The fastest call, after the first.
            columns[label] = min(found[1:], key=lambda seconds: seconds["all"])
    table = Table(title=f"milliseconds per step, {case.batch} sequences, {case.num_beams} beams")
    table.add_column("", no_wrap=True)
    for label in columns:
        table.add_column(label, justify="right")
    for part in (*PARTS, "the rest", "all"):
        table.add_row(part, *(f"{1e3 * seconds.get(part, 0) / case.new_tokens:.3f}" for seconds in columns.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
