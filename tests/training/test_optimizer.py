"""Adafactor and T5's schedule."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import T5Config, T5ForConditionalGeneration, set_seed

from synthesizer_lab.training.options import TrainingOptions
from synthesizer_lab.training.run import resume_run
from synthesizer_lab.training.settings import build_config, read_settings
from synthesizer_lab.training.trainer import constant_then_inverse_sqrt
from synthetic_attention import SynthesizerForConditionalGeneration
from training.runs import Small, assert_same_runs, logged, silent, start, start_and_kill, weights

ADAFACTOR = ("optim=adafactor", "learning_rate=0.01", "max_grad_norm=0", "warmup_steps=0", "constant_steps=4")


def _rates(training: TrainingOptions, steps: int) -> list[float]:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=training.learning_rate)
    scheduler, rates = constant_then_inverse_sqrt(optimizer, training.warmup_steps, training.constant_steps), []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def test_the_schedule_is_t5s() -> None:
    training = read_settings(synthesizer="random", preset="t5-base", seed=1).training
    training = TrainingOptions(
        max_steps=1, learning_rate=training.learning_rate, warmup_steps=training.warmup_steps, constant_steps=10_000
    )
    rates = _rates(training, 10_300)
    assert rates == pytest.approx([1 / math.sqrt(max(step, 10_000)) for step in range(10_300)], rel=1e-9)
    rates = _rates(TrainingOptions(max_steps=1, learning_rate=1.0, warmup_steps=4, constant_steps=9), 40)
    assert rates[:5] == [0, 0.25, 0.5, 0.75, 1]
    assert rates[9] == 1
    assert rates[36] == 0.5


def test_logits_that_start_near_zero_are_moved_as_weights_are(corpus: Path, tmp_path: Path, small: Small) -> None:
    settings = small(*ADAFACTOR, "max_steps=1", "eval_steps=1", "weight_decay=0", synthesizer="random+dense")
    assert start(corpus, tmp_path / "run", settings).metrics["steps"] == 1
    model = SynthesizerForConditionalGeneration.from_pretrained(tmp_path / "run")
    set_seed(settings.training.seed)
    first, last = dict(type(model)(model.config).named_parameters()), weights(tmp_path / "run")
    moved = {name: float((last[name] - value.detach()).square().mean().sqrt()) for name, value in first.items()}
    layer = "model.encoder.layers.0.self_attn"
    # The rate times 0.1; not all positions are reached.
    for name in ("function.gate", "function.functions.0.table", "function.functions.1.key_bias"):
        assert 1e-4 < moved[f"{layer}.{name}"] <= 0.01 * 0.1 * 1.01, name
    size = float(first[f"{layer}.v_proj.weight"].detach().square().mean().sqrt())
    assert moved[f"{layer}.v_proj.weight"] == pytest.approx(0.01 * size, rel=0.05)
    # Biases that are no logits wait for their turn, as in T5.
    assert moved[f"{layer}.out_proj.bias"] <= 0.01 * 1e-3 * 1.01


def test_killed_and_resumed_equals_straight(corpus: Path, tmp_path: Path, small: Small) -> None:
    settings = small(*ADAFACTOR)
    start(corpus, tmp_path / "straight", settings)
    start_and_kill(corpus, tmp_path / "killed", settings, 7)
    resume_run(tmp_path / "killed", report=silent)
    assert_same_runs(tmp_path / "straight", tmp_path / "killed")
    rates = logged(tmp_path / "straight", "learning_rate")
    assert rates == pytest.approx([0.01, 0.01, 0.01 * (4 / 6) ** 0.5, 0.01 * (4 / 8) ** 0.5], rel=0.1)
    # No moments: of each matrix a mean per row and column.
    (checkpoint,) = (tmp_path / "straight/checkpoints").iterdir()
    states = torch.load(checkpoint / "optimizer.pt", weights_only=True)["state"].values()
    assert any("exp_avg_sq_row" in state for state in states)
    assert not any("exp_avg" in state for state in states)


def test_t5_is_as_published() -> None:
    for preset, layers, width, d_ff, heads in (("t5-small", 6, 512, 2048, 8), ("t5-base", 12, 768, 3072, 12)):
        settings = read_settings(synthesizer="vanilla", preset=preset, seed=1)
        config, training = build_config(settings), settings.training
        assert (config.position_embedding_type, config.norm_type, config.use_bias) == ("relative", "rms_norm", False)
        assert (config.feed_forward_proj, config.pre_norm, config.tie_word_embeddings) == ("relu", True, True)
        assert (config.dropout_rate, config.attention_dropout_rate) == (0.1, 0.1)
        assert training.label_smoothing_factor == 0
        assert (training.lr_scheduler_type, training.constant_steps) == ("inverse_sqrt", 10_000)
        assert (training.optim, training.learning_rate, training.max_steps) == ("adafactor", 0.01, 2**19)
        # 128 inputs of 512 tokens and the longest targets.
        assert training.batch_tokens * training.gradient_accumulation_steps == 128 * (512 + 116)
        published = T5Config(vocab_size=32128, d_model=width, d_kv=64, d_ff=d_ff, num_layers=layers, num_heads=heads)
        with torch.device("meta"):
            ours, theirs = SynthesizerForConditionalGeneration(config), T5ForConditionalGeneration(published)
        assert ours.num_parameters() == theirs.num_parameters()
