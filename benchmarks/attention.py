"""Time of a whole attention layer: every variant against PyTorch's own, side by side.

    python benchmarks/attention.py --shapes 16x128,4x512 --masks full,causal,padded

All layers take turns in one process, so that whatever else the machine does meets all of them; the figures are ratios
to `nn.MultiheadAttention` of each turn, their median and quartiles. Before a variant is timed, its output and
gradients are compared with those of its slow twin, the equation as it is written. `floor` is the time that the
matrix products of a random layer alone take in the same turns.
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

from synthetic_attention import SynthesizerAttention, attention_weights
from synthetic_attention.functions import Span

BASELINE = "mha"
VARIANTS = "random,fixed_random,factorized_random,dense,factorized_dense,random+vanilla,dense+vanilla,vanilla"
Call = Callable[[Tensor, Tensor | None], Tensor]


@dataclass
class Result:
    """`ratio` is the baseline's time of a turn over this layer's."""

    mask: str
    batch: int
    length: int
    name: str
    milliseconds: float
    ratio: float
    ratio_quartiles: tuple[float, float]


class SdpaLayer(nn.Module):
    """Fused projections round `scaled_dot_product_attention`: what an engineer would write."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        allowed = None if mask is None else mask[:, None, None, :]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, is_causal=is_causal)
        return self.out(y.transpose(1, 2).flatten(2))


def slow_twin(layer: SynthesizerAttention, x: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
    """The layer's equation through whole matrices of weights."""
    value, projected = layer._project(x, None)
    keys = None if projected is None else layer.function.keys(projected)
    logits = layer.function(projected, Span(x.shape[1], x.shape[1]), keys)
    weights = attention_weights(logits, mask, is_causal, length=x.shape[1])
    y = layer.out_proj((weights.to(value.dtype) @ value).transpose(1, 2).flatten(2))
    return y if mask is None else y * mask[..., None]


def gradients(call: Call, module: nn.Module, x: Tensor, mask: Tensor | None, g: Tensor) -> list[Tensor]:
    """Output and all gradients."""
    y = call(x, mask)
    parameters = [p for p in module.parameters() if p.requires_grad]
    return [y.detach(), *torch.autograd.grad(y, [x, *parameters], g)]


def check(layer: SynthesizerAttention, x: Tensor, mask: Tensor | None, is_causal: bool) -> None:
    """Compare a layer with its slow twin.

    Raises:
        SystemExit: they differ.
    """
    g = torch.randn_like(x)
    fast = gradients(lambda x, mask: layer(x, mask, is_causal=is_causal), layer, x, mask, g)
    slow = gradients(lambda x, mask: slow_twin(layer, x, mask, is_causal), layer, x, mask, g)
    worst = max(float((a - b).norm() / b.norm().clamp_min(1e-20)) for a, b in zip(fast, slow, strict=True))
    limit = 1e-3 if x.dtype == torch.float32 else 5e-2
    if worst > limit:
        raise SystemExit(f"{layer.synthesizer} differs from its slow twin by {worst:.1e}; expected at most {limit:.0e}")


def build(options: argparse.Namespace, length: int, is_causal: bool) -> dict[str, tuple[nn.Module, Call]]:
    """The layers, by name, and how each is called."""
    width, heads = options.width, options.heads
    mha = nn.MultiheadAttention(width, heads, batch_first=True)
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1) if is_causal else None
    sdpa = SdpaLayer(width, heads)

    def call_mha(x: Tensor, mask: Tensor | None) -> Tensor:
        padding = None if mask is None else ~mask
        y, _ = mha(x, x, x, need_weights=False, key_padding_mask=padding, attn_mask=hidden, is_causal=is_causal)
        return y

    def call_layer(layer: SynthesizerAttention, x: Tensor, mask: Tensor | None) -> Tensor:
        return layer(x, mask, is_causal=is_causal)

    def call_twin(layer: SynthesizerAttention, x: Tensor, mask: Tensor | None) -> Tensor:
        return slow_twin(layer, x, mask, is_causal)

    layers: dict[str, tuple[nn.Module, Call]] = {
        BASELINE: (mha, call_mha),
        "sdpa": (sdpa, lambda x, mask: sdpa(x, mask, is_causal)),
    }
    for name in options.variants.split(","):
        layer = SynthesizerAttention(width, heads, name, length)
        layers[name] = (layer, partial(call_layer, layer))
        if options.twins:
            layers[f"{name} (twin)"] = (layer, partial(call_twin, layer))
    return {name: (module.to(options.dtype), call) for name, (module, call) in layers.items()}


def floor(options: argparse.Namespace, batch: int, length: int) -> Callable[[], None]:
    """The matrix products of a random layer, forward and backward, each into memory that is there already."""
    width, heads = options.width, options.heads
    tokens = torch.randn(batch * length, width, dtype=options.dtype)
    weight, wide = torch.randn(width, width, dtype=options.dtype), torch.empty_like(tokens)
    square = torch.empty_like(weight)
    scores = torch.rand(heads, length, length, dtype=options.dtype)
    values = torch.randn(heads, batch * width // heads, length, dtype=options.dtype)
    mixed, outer = torch.empty_like(values), torch.empty_like(scores)

    def products() -> None:
        for _ in range(2):
            torch.mm(tokens, weight.t(), out=wide)
            torch.mm(tokens, weight, out=wide)
            torch.mm(tokens.t(), tokens, out=square)
        torch.bmm(values, scores.mT, out=mixed)
        torch.bmm(values, scores, out=mixed)
        torch.bmm(values.mT, values, out=outer)

    return products


def measure(options: argparse.Namespace, batch: int, length: int, kind: str) -> list[Result]:
    """Let all layers take turns."""
    is_causal = kind == "causal"
    x = torch.randn(batch, length, options.width, dtype=options.dtype, requires_grad=True)
    mask = None
    if kind == "padded":
        lengths = torch.linspace(length // 2, length, batch).long()
        mask = torch.arange(length) < lengths[:, None]
    layers, g = build(options, length, is_causal), torch.randn_like(x)
    for module, _ in layers.values():
        if isinstance(module, SynthesizerAttention):
            check(module, x, mask, is_causal)
    turns: dict[str, Callable[[], object]] = {
        name: partial(step, call, module, x, mask, g, options.forward) for name, (module, call) in layers.items()
    }
    if not options.forward and kind == "full":
        turns["floor of random"] = floor(options, batch, length)
    times: dict[str, list[float]] = {name: [] for name in turns}
    for repeat in range(options.warmup + options.repeats):
        for name, turn in turns.items():
            start = time.perf_counter()
            turn()
            if repeat >= options.warmup:
                times[name].append(time.perf_counter() - start)
    results = []
    for name, taken in times.items():
        ratio = np.asarray(times[BASELINE]) / np.asarray(taken)
        low, median, high = (float(q) for q in np.quantile(ratio, (0.25, 0.5, 0.75)))
        results.append(Result(kind, batch, length, name, 1e3 * float(np.median(taken)), median, (low, high)))
    return results


def step(call: Call, module: nn.Module, x: Tensor, mask: Tensor | None, g: Tensor, forward: bool) -> None:
    """Forward, or forward and backward."""
    if forward:
        with torch.inference_mode():
            call(x, mask)
        return
    call(x, mask).backward(g)
    x.grad = None
    module.zero_grad()


def table(results: list[Result], title: str) -> Table:
    """A row per layer, a column per shape; times as fast as the baseline. The widest quartiles stand below."""
    spread = max((r.ratio_quartiles[1] - r.ratio_quartiles[0]) / r.ratio for r in results)
    out = Table(title=title, caption=f"medians; quartiles at most {100 * spread:.0f} % apart")
    shapes = list(dict.fromkeys((r.batch, r.length) for r in results))
    out.add_column("layer", no_wrap=True)
    for batch, length in shapes:
        out.add_column(f"{batch}×{length}", justify="right", no_wrap=True)
    for name in dict.fromkeys(r.name for r in results):
        ratios = {(r.batch, r.length): r.ratio for r in results if r.name == name}
        out.add_row(name, *(f"{ratios[shape]:.2f}" for shape in shapes))
    return out


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", default=VARIANTS, help="synthesizers, separated by commas")
    parser.add_argument("--shapes", default="32x64,16x128,8x256,4x512,2x1024", help="batch x length, ...")
    parser.add_argument("--masks", default="full,causal,padded")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--forward", action="store_true", help="time the forward alone, in inference mode")
    parser.add_argument("--twins", action="store_true", help="time the slow twins too")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path, help="write the results here too")
    options = parser.parse_args()
    options.dtype = getattr(torch, options.dtype)
    return options


def main() -> None:
    """Measure, and show a table for each kind of mask."""
    options, console = parse(), Console()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    everything = []
    for kind in options.masks.split(","):
        results = []
        for shape in options.shapes.split(","):
            batch, length = (int(n) for n in shape.split("x"))
            results += measure(options, batch, length, kind)
        passes = "forward" if options.forward else "forward + backward"
        console.print(table(results, f"{kind}, {passes}, {options.threads} threads; × {BASELINE}"))
        everything += results
    if options.json is not None:
        about = {
            "command": shlex.join(sys.argv),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "torch": torch.__version__,
            "machine": platform.machine(),
            "threads": options.threads,
            "dtype": str(options.dtype),
        }
        options.json.write_text(json.dumps({**about, "results": [asdict(r) for r in everything]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
