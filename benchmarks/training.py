"""Tokens per second of training steps: a Hugging Face Marian model, and ours with some synthesizers, side by side.

    python benchmarks/training.py --data FOLDER --source en --target de --synthesizers vanilla,random+vanilla

All models have the sizes of the preset, the same tokenizer, batches, loss (label smoothing) and optimizer. They
train in one process and take turns on each batch, so that whatever else the machine does meets all of them. Tokens
are real source and target tokens, padding not counted. A step is forward, backward, clipping and the optimizer's
update. Without --data a small corpus is made.
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import MarianConfig, MarianMTModel

from synthetic_attention import SynthesizerConfig, SynthesizerForConditionalGeneration
from synthetic_attention.data.cldr import write_cldr_corpus
from synthetic_attention.data.examples import IGNORED, pair_collate
from synthetic_attention.tasks.translation import Translation
from synthetic_attention.training.batching import TokenBatchSampler
from synthetic_attention.training.settings import Settings, build_config, read_settings

BASELINE = "marian"
Batch = dict[str, Tensor]
Loss = Callable[[nn.Module, Batch], Tensor]


@dataclass
class Result:
    """Median and quartiles over the batches; `ratio` is the baseline's time for a batch over this model's."""

    name: str
    parameters: int
    tokens_per_second: float
    tokens_per_second_quartiles: tuple[float, float]
    ratio: float
    ratio_quartiles: tuple[float, float]
    last_loss: float


class Contender:
    """A model with its optimizer, and the seconds that each batch took it."""

    def __init__(self, name: str, model: nn.Module, loss: Loss, settings: Settings, device: torch.device) -> None:
        training = settings.training
        self.name, self.model, self.loss = name, model.to(device).train(), loss
        self.seconds: list[float] = []
        self.last_loss = float("nan")
        self._clip, self._bf16, self._device = training.max_grad_norm, training.dtype == "bfloat16", device
        # A rate that leaves the weights near where they started: only the time is of interest.
        self._optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=training.learning_rate / 100,
            betas=(training.beta1, training.beta2),
            eps=training.epsilon,
            weight_decay=training.weight_decay,
            fused=True,
        )

    def step(self, batch: Batch) -> None:
        """One update, timed."""
        start = self._now()
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
            loss = self.loss(self.model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self._clip)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.seconds.append(self._now() - start)
        self.last_loss = float(loss.detach())

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


def marian(config: SynthesizerConfig) -> MarianMTModel:
    """A Marian model of the same dimensions, tied as ours is."""
    start = config.decoder_start_token_id
    assert isinstance(start, int)
    return MarianMTModel(
        MarianConfig(
            vocab_size=config.vocab_size,
            d_model=config.d_model,
            encoder_layers=config.num_layers,
            decoder_layers=config.num_decoder_layers or config.num_layers,
            encoder_attention_heads=config.num_heads,
            decoder_attention_heads=config.num_heads,
            encoder_ffn_dim=config.d_ff,
            decoder_ffn_dim=config.d_ff,
            activation_function="relu",
            max_position_embeddings=config.max_position_embeddings,
            dropout=config.dropout_rate,
            attention_dropout=config.attention_dropout_rate,
            activation_dropout=0.0,
            scale_embedding=config.scale_embedding,
            share_encoder_decoder_embeddings=True,
            tie_word_embeddings=True,
            pad_token_id=config.pad_token_id,
            eos_token_id=config.eos_token_id,
            decoder_start_token_id=start,
            use_cache=False,
        )
    )


def marian_loss(smoothing: float) -> Loss:
    """Label-smoothed cross-entropy of Marian's logits, which has no such option of its own."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        labels = batch["labels"]
        inputs = model.prepare_decoder_input_ids_from_labels(labels)  # type: ignore[operator]
        outputs = model(batch["input_ids"], attention_mask=batch["attention_mask"], decoder_input_ids=inputs)
        return F.cross_entropy(
            outputs.logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, label_smoothing=smoothing
        )

    return loss


def our_loss(model: nn.Module, batch: Batch) -> Tensor:
    """The loss that the model computes itself, smoothing included."""
    return model(**batch).loss


def contenders(options: argparse.Namespace, vocab_size: int, device: torch.device) -> list[Contender]:
    """The baseline, then ours in the order given."""
    made: list[Contender] = []
    for name in options.synthesizers.split(","):
        settings = read_settings(
            synthesizer=name, preset=options.preset, seed=options.seed, overrides=options.overrides
        )
        config = build_config(settings, vocab_size=vocab_size)
        torch.manual_seed(options.seed)
        if not made:
            model: nn.Module = marian(config)
            made.append(Contender(BASELINE, model, marian_loss(config.label_smoothing), settings, device))
        made.append(Contender(name, SynthesizerForConditionalGeneration(config), our_loss, settings, device))
    return made


def read_batches(options: argparse.Namespace, folder: Path) -> tuple[list[Batch], int]:
    """The first batches of a training run on this data, and the size of its vocabulary."""
    settings = read_settings(
        synthesizer="vanilla", preset=options.preset, seed=options.seed, overrides=options.overrides
    )
    task = Translation(options.source, options.target)
    text = task.read(folder, "train")
    config = build_config(settings)
    tokenizer = task.tokenizer(text, config.vocab_size, config.max_position_embeddings)
    examples = task.examples(text, tokenizer, config.max_position_embeddings, "drop")
    count = options.warmup + options.batches
    sampler = TokenBatchSampler(examples.lengths(), settings.training.batch_tokens, options.seed, count)
    pad_token_id = config.pad_token_id
    assert isinstance(pad_token_id, int)
    return [pair_collate([examples[i] for i in batch], pad_token_id) for batch in sampler], len(tokenizer)


def race(models: list[Contender], batches: list[Batch], warmup: int) -> None:
    """All models train on each batch before the next; who goes first changes."""
    for i, batch in enumerate(batches):
        turn = i % len(models)
        for model in models[turn:] + models[:turn]:
            model.step(batch)
    for model in models:
        del model.seconds[:warmup]


def summarize(models: list[Contender], batches: list[Batch]) -> list[Result]:
    """Median and quartiles of each model."""
    tokens = np.array([int(b["attention_mask"].sum() + (b["labels"] != IGNORED).sum()) for b in batches])
    results = []
    for model in models:
        speed = tokens / np.array(model.seconds)
        ratio = np.array(models[0].seconds) / np.array(model.seconds)
        results.append(
            Result(
                name=model.name,
                parameters=sum(p.numel() for p in model.model.parameters() if p.requires_grad),
                tokens_per_second=float(np.median(speed)),
                tokens_per_second_quartiles=_quartiles(speed),
                ratio=float(np.median(ratio)),
                ratio_quartiles=_quartiles(ratio),
                last_loss=model.last_loss,
            )
        )
    return results


def _quartiles(values: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(values, (0.25, 0.75))
    return float(low), float(high)


def table(results: list[Result], title: str) -> Table:
    """The results for a terminal."""
    out = Table(title=title)
    for column in ("model", "params", "tokens/s", "quartiles", f"× {BASELINE}", "q1–q3"):
        out.add_column(column, justify="left" if column == "model" else "right", no_wrap=True)
    for r in results:
        low, high = r.tokens_per_second_quartiles
        ratio_low, ratio_high = r.ratio_quartiles
        out.add_row(
            r.name,
            f"{r.parameters / 1e6:.2f} M",
            f"{r.tokens_per_second:,.0f}",
            f"{low:,.0f}–{high:,.0f}",
            f"{r.ratio:.2f}",
            f"{ratio_low:.2f}–{ratio_high:.2f}",
        )
    return out


def report(options: argparse.Namespace, results: list[Result], device: torch.device) -> dict[str, Any]:
    """The results with all that is needed to repeat them."""
    return {
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "threads": torch.get_num_threads(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "batches": options.batches,
        "results": [asdict(result) for result in results],
    }


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with train.LANGUAGE files (default: a small corpus, made)")
    parser.add_argument("--source", default="en")
    parser.add_argument("--target", default="de")
    parser.add_argument("--synthesizers", default="vanilla,random,random+vanilla", help="separated by commas")
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--batches", type=int, default=30, help="timed")
    parser.add_argument("--warmup", type=int, default=5, help="batches before them")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, help="of torch")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="write the results here too")
    options = parser.parse_args()
    if options.batches < 1 or options.warmup < 0:
        parser.error("expected at least one batch and no negative warm-up")
    return options


def main() -> None:
    """Measure, print, write."""
    options = parse()
    if options.threads:
        torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.data or Path(temporary)
        if options.data is None:
            write_cldr_corpus(folder, train=2000, held_out=50)
        batches, vocab_size = read_batches(options, folder)
    batches = [{name: tensor.to(device) for name, tensor in batch.items()} for batch in batches]
    models = contenders(options, vocab_size, device)
    race(models, batches, options.warmup)
    results = summarize(models, batches[options.warmup :])
    Console().print(table(results, f"training, preset {options.preset}, {options.batches} batches, {device}"))
    if options.json:
        options.json.write_text(json.dumps(report(options, results, device), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
