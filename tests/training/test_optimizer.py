"""Adafactor and T5's schedule."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import Adafactor, T5Config, T5ForConditionalGeneration

from synthetic_attention import SynthesizerConfig, SynthesizerForConditionalGeneration
from synthetic_attention.inspect.probe import initial_model
from synthetic_attention.tasks import UserError
from synthetic_attention.tasks.span_noise import Packing
from synthetic_attention.training.arguments import choose_optimizer, constant_first
from synthetic_attention.training.session import resume_run
from synthetic_attention.training.settings import TrainingArguments, build_config, read_settings
from training.runs import Kill, KilledError, Small, assert_same_runs, die, silent, start, weights

ADAFACTOR = ("optimizer=adafactor", "learning_rate=0.01", "max_grad_norm=0", "warmup_steps=0", "constant_steps=4")


def _rates(training: TrainingArguments, steps: int) -> list[float]:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=training.learning_rate)
    scheduler, rates = constant_first(optimizer, training), []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def test_the_schedule_is_t5s() -> None:
    training = read_settings(synthesizer="random", preset="t5-base", seed=1).training
    training = TrainingArguments(
        steps=1, learning_rate=training.learning_rate, warmup_steps=training.warmup_steps, constant_steps=10_000
    )
    rates = _rates(training, 10_300)
    assert rates == pytest.approx([1 / math.sqrt(max(step, 10_000)) for step in range(10_300)], rel=1e-9)
    rates = _rates(TrainingArguments(steps=1, learning_rate=1.0, warmup_steps=4, constant_steps=9), 40)
    assert rates[:5] == [0, 0.25, 0.5, 0.75, 1]
    assert rates[9] == 1
    assert rates[36] == 0.5


def test_the_rate_may_stay(corpus: Path, tmp_path: Path, small: Small) -> None:
    start(corpus, tmp_path / "run", small("schedule=constant", "warmup_steps=2", "log_interval=1"))
    entries = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text(encoding="utf-8").splitlines()]
    rates = [entry["learning_rate"] for entry in entries if "learning_rate" in entry]
    assert rates == pytest.approx([0, 1.5e-3, *[3e-3] * 6])


def test_adafactor_scales_updates_by_the_weights() -> None:
    """The first update has a root mean square of the rate times that of the weights, which counts as 1e-3 at least."""
    chosen = choose_optimizer(TrainingArguments(steps=1, optimizer="adafactor", learning_rate=0.01))
    assert chosen is not None
    assert chosen[0] is Adafactor
    torch.manual_seed(0)
    large, none = nn.Parameter(5 * torch.randn(7, 11)), nn.Parameter(torch.zeros(13))
    before = large.detach().clone()
    optimizer = chosen[0]([large, none], **chosen[1])
    for parameter in (large, none):
        parameter.grad = 1e-3 * torch.randn(parameter.shape)
    optimizer.step()
    for change, size in ((large.detach() - before, before.square().mean().sqrt()), (none.detach(), 1e-3)):
        assert change.square().mean().sqrt() == pytest.approx(0.01 * float(size), rel=0.05)
    assert choose_optimizer(TrainingArguments(steps=1)) is None


def test_logits_that_start_near_zero_are_moved_as_weights_are(corpus: Path, tmp_path: Path, small: Small) -> None:
    settings = small(*ADAFACTOR, "steps=1", "eval_interval=1", "weight_decay=0", synthesizer="random+dense")
    assert start(corpus, tmp_path / "run", settings).metrics["steps"] == 1
    model = SynthesizerForConditionalGeneration.from_pretrained(tmp_path / "run")
    first, last = dict(initial_model(model, settings.seed).named_parameters()), weights(tmp_path / "run")
    moved = {name: float((last[name] - value.detach()).square().mean().sqrt()) for name, value in first.items()}
    layer = "encoder.layers.0.self_attention"
    # The rate times 0.1; not all positions are reached.
    for name in ("function.gate", "function.parts.0.table", "function.parts.1.bias"):
        assert 1e-4 < moved[f"{layer}.{name}"] <= 0.01 * 0.1 * 1.01, name
    size = float(first[f"{layer}.in_proj.weight"].detach().square().mean().sqrt())
    assert moved[f"{layer}.in_proj.weight"] == pytest.approx(0.01 * size, rel=0.05)
    # Biases that are no logits wait for their turn, as in T5.
    assert moved[f"{layer}.out_proj.bias"] <= 0.01 * 1e-3 * 1.01


def test_relative_biases_start_as_t5s() -> None:
    config = SynthesizerConfig(
        vocab_size=9, d_model=64, num_heads=8, d_ff=8, num_layers=1, position_embedding_type="relative"
    )
    bias = SynthesizerForConditionalGeneration(config).encoder.relative_bias
    assert bias is not None
    assert float(bias.weight.detach().std()) == pytest.approx(64**-0.5, rel=0.2)


def test_killed_and_resumed_equals_straight(corpus: Path, tmp_path: Path, small: Small) -> None:
    settings = small(*ADAFACTOR)
    start(corpus, tmp_path / "straight", settings)
    with pytest.raises(KilledError):
        start(corpus, tmp_path / "killed", settings, watch=lambda *_: Kill(7, die))
    resume_run(tmp_path / "killed", report=silent)
    assert_same_runs(tmp_path / "straight", tmp_path / "killed")
    log = (tmp_path / "straight/log.jsonl").read_text(encoding="utf-8").splitlines()
    rates = [entry["learning_rate"] for entry in map(json.loads, log) if "learning_rate" in entry]
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
        assert (config.num_layers, config.num_decoder_layers) == (layers, layers)
        assert (config.d_model, config.d_ff, config.num_heads, config.d_kv) == (width, d_ff, heads, 64)
        assert (config.position_embedding_type, config.norm_type, config.use_bias) == ("relative", "rms_norm", False)
        assert (config.feed_forward_proj, config.pre_norm, config.tie_word_embeddings) == ("relu", True, True)
        assert (config.relative_attention_num_buckets, config.relative_attention_max_distance) == (32, 128)
        assert (config.vocab_size, config.max_position_embeddings) == (32128, 512)
        assert (config.dropout_rate, config.attention_dropout_rate, config.label_smoothing) == (0.1, 0.1, 0)
        assert (training.schedule, training.constant_steps) == ("inverse_sqrt", 10_000)
        assert (training.optimizer, training.learning_rate, training.steps) == ("adafactor", 0.01, 2**19)
        # 128 inputs of 512 tokens and the longest targets.
        assert training.batch_tokens * training.gradient_accumulation_steps == 128 * (512 + 116)
        published = T5Config(
            vocab_size=32128, d_model=width, d_kv=64, d_ff=d_ff, num_layers=layers, num_heads=heads, dropout_rate=0.1
        )
        with torch.device("meta"):
            ours, theirs = SynthesizerForConditionalGeneration(config), T5ForConditionalGeneration(published)
        assert ours.num_parameters() == theirs.num_parameters()


def test_t5_tiny_is_what_it_is_said_to_be() -> None:
    settings = read_settings(synthesizer="random+vanilla", preset="t5-tiny", seed=1)
    config, training = build_config(settings), settings.training
    assert (config.num_layers, config.num_decoder_layers, config.d_model, config.vocab_size) == (3, 3, 128, 8000)
    assert (config.position_embedding_type, config.norm_type, config.use_bias) == ("relative", "rms_norm", False)
    assert (training.optimizer, training.schedule) == ("adafactor", "inverse_sqrt")
    packing = Packing(config.max_position_embeddings)
    assert training.batch_tokens == 8 * (packing.inputs + packing.most_targets)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer=sgd", "got optimizer='sgd'; expected one of: adamw, adafactor"),
        ("schedule=cosine", "got schedule='cosine'; expected one of: inverse_sqrt, constant"),
        ("constant_steps=-1", "got constant_steps=-1; expected 0 or more"),
        ("max_grad_norm=-1", "got max_grad_norm=-1.0; expected 0 or more"),
    ],
)
def test_what_cannot_be_is_refused(small: Small, override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        small(override)
