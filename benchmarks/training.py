"""Tokens per second of training steps: a Hugging Face Marian model, and ours with several synthesizers.

    python benchmarks/training.py --data FOLDER --source en --target de --synthesizers vanilla,random+vanilla

All models have the sizes of the preset, the same tokenizer, batches, loss and optimizer, and take turns on each batch.
Tokens are source and target tokens without padding. A step is forward, backward, clipping and the optimizer's update.
Without --data, example phrases are used.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import MarianConfig, MarianMTModel

from synthetic_attention import SynthesizerConfig, SynthesizerForConditionalGeneration
from synthetic_attention.benchmark.harness import quartiles, take_turns
from synthetic_attention.data.examples import pair_collate
from synthetic_attention.data.phrases import write_phrases
from synthetic_attention.models.loss import IGNORED
from synthetic_attention.tasks.translation import Translation
from synthetic_attention.training.settings import Settings, build_config, read_settings
from synthetic_attention.training.trainer import TokenBatchSampler

BASELINE = "marian"
Batch = dict[str, Tensor]


def marian_config(config: SynthesizerConfig) -> MarianConfig:
    """A Marian configuration with the dimensions of `config`, tied like ours."""
    assert isinstance(config.decoder_start_token_id, int)
    return MarianConfig(
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
        decoder_start_token_id=config.decoder_start_token_id,
        use_cache=False,
    )


def compute_loss(model: nn.Module, batch: Batch, smoothing: float) -> Tensor:
    """The label-smoothed cross-entropy: our models compute it themselves, Marian has no smoothing."""
    if not isinstance(model, MarianMTModel):
        return model(**batch, smoothing=smoothing).loss
    labels = batch["labels"]
    inputs = model.prepare_decoder_input_ids_from_labels(labels)
    logits = model(batch["input_ids"], attention_mask=batch["attention_mask"], decoder_input_ids=inputs).logits
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, label_smoothing=smoothing)


def training_step(model: nn.Module, batches: list[Batch], settings: Settings) -> Callable[[], None]:
    """A function that trains `model` on the next batch."""
    training, remaining = settings.training, cycle(batches)
    model.train()
    # The small learning rate keeps the weights near their start: only the time matters.
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=training.learning_rate / 100,
        betas=(training.adam_beta1, training.adam_beta2),
        eps=training.adam_epsilon,
        weight_decay=training.weight_decay,
        fused=True,
    )

    def step() -> None:
        batch = next(remaining)
        with torch.autocast(batch["labels"].device.type, torch.bfloat16, enabled=training.bf16):
            loss = compute_loss(model, batch, training.label_smoothing_factor)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), training.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()

    return step


def read_batches(options: argparse.Namespace, folder: Path) -> tuple[list[Batch], int]:
    """The first batches of a training run on this data, and the size of its vocabulary."""
    settings = read_settings(synthesizer="vanilla", preset=options.preset, overrides=options.overrides)
    task, config = Translation(options.source, options.target), build_config(settings)
    text = task.read(folder, "train")
    tokenizer = task.train_tokenizer(text, config.vocab_size, config.max_position_embeddings)
    examples = task.encode(text, tokenizer, config.max_position_embeddings, "drop")
    count = options.warmup + options.batches
    sampler = TokenBatchSampler(examples.lengths(), settings.training.batch_tokens, options.seed, count)
    assert isinstance(config.pad_token_id, int)
    batches = [pair_collate([examples[i] for i in batch], config.pad_token_id) for batch in sampler]
    return [{name: tensor.to(options.device) for name, tensor in batch.items()} for batch in batches], len(tokenizer)


def measure(options: argparse.Namespace, folder: Path) -> None:
    """Let Marian and our models take turns on each batch, and print a table in Markdown."""
    batches, vocab_size = read_batches(options, folder)
    steps, parameters = {}, {}
    for name in (BASELINE, *options.synthesizers.split(",")):
        synthesizer = "vanilla" if name == BASELINE else name
        settings = read_settings(synthesizer=synthesizer, preset=options.preset, overrides=options.overrides)
        config = build_config(settings, vocab_size=vocab_size)
        torch.manual_seed(options.seed)
        model: nn.Module = (
            MarianMTModel(marian_config(config)) if name == BASELINE else SynthesizerForConditionalGeneration(config)
        )
        steps[name] = training_step(model.to(options.device), batches, settings)
        parameters[name] = sum(p.numel() for p in model.parameters() if p.requires_grad)
    timed = batches[options.warmup :]
    tokens = np.array([int(b["attention_mask"].sum() + (b["labels"] != IGNORED).sum()) for b in timed])
    times = take_turns(steps, options.batches, options.warmup, options.device)
    print(f"| model | parameters | tokens/s | × {BASELINE} | quartiles |\n|---|---:|---:|---:|---:|")
    for name, taken in times.items():
        low, ratio, high = quartiles(np.array(times[BASELINE]) / np.array(taken))
        speed = np.median(tokens / np.array(taken))
        print(f"| {name} | {parameters[name]:,} | {speed:,.0f} | {ratio:.2f} | {low:.2f}–{high:.2f} |")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with train.LANGUAGE files")
    parser.add_argument("--source", default="en")
    parser.add_argument("--target", default="de")
    parser.add_argument("--synthesizers", default="vanilla,random,random+vanilla", help="separated by commas")
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--batches", type=int, default=30, help="number of timed batches")
    parser.add_argument("--warmup", type=int, default=5, help="number of batches before them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.data or Path(temporary)
        if options.data is None:
            write_phrases(folder, 2000, 50)
        measure(options, folder)


if __name__ == "__main__":
    main()
