"""What people run on the models: Trainer, PEFT, torchao, ways to generate, a model on several devices."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForSeq2SeqLM,
    DataCollatorWithFlattening,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainingArguments,
)

from models.conftest import STACKS

pytestmark = pytest.mark.filterwarnings("ignore:`(is_)?gradient_checkpointing`|TorchaoLoraLinear was instantiated")
MIXED = ["random+vanilla", "factorized_dense"]
TRAINING: dict[str, Any] = dict.fromkeys(("use_cpu", "bf16", "gradient_checkpointing", "disable_tqdm"), True)
TRAINING |= {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "learning_rate": 3e-2}
TRAINING |= {"dataloader_pin_memory": False, "report_to": "none", "save_strategy": "no"}


def _counting(length: int) -> list[dict[str, Tensor]]:
    """Rows of numbers, each one more than that before."""
    rows = [(torch.arange(length) + start) % 10 + 4 for start in range(16)]
    return [{"input_ids": row, "labels": row} for row in rows]


def test_trainer_trains_on_flattened_batches(tiny_lm: Callable, tmp_path: Path) -> None:
    model, rows = tiny_lm(synthesizer="random+vanilla", num_layers=1, dropout_rate=0.0), _counting(8)
    arguments = TrainingArguments(str(tmp_path), max_steps=20, **TRAINING)
    Trainer(model, arguments, DataCollatorWithFlattening(), train_dataset=rows).train()  # type: ignore[arg-type]
    ids = torch.stack([row["input_ids"] for row in rows])
    # Nothing says which number comes first.
    assert torch.equal(model.eval()(ids).logits[:, :-1].argmax(-1), ids[:, 1:])


@pytest.mark.parametrize("head", ["causal", "masked", "classifier", "tagger"])
def test_trainer_smooths_the_labels_of(head: str, build: Callable, tmp_path: Path) -> None:
    model = build(head, num_labels=53, dropout_rate=0.0, num_layers=1, synthesizer="dense")
    ids = torch.stack([row["labels"] for row in _counting(6)])
    labels = {"causal": ids, "masked": ids, "tagger": ids + 1, "classifier": ids[:, 2]}[head]
    rows = [{"input_ids": row, "labels": label} for row, label in zip(ids, labels, strict=True)]
    options = {**TRAINING, "bf16": False, "gradient_checkpointing": False, "label_smoothing_factor": 0.1}
    arguments = TrainingArguments(str(tmp_path), max_steps=30, **options)
    Trainer(model, arguments, train_dataset=rows).train()  # type: ignore[arg-type]
    found = model.eval()(ids).logits.argmax(-1)
    if head == "causal":
        # Trainer shifts labels only for the names that it finds in transformers' tables.
        found, labels = found[:, :-1], labels[:, 1:]
    assert torch.equal(found, labels)


def test_seq2seq_trainer_trains_and_generates(tiny: Callable, tmp_path: Path) -> None:
    model, rows = tiny(synthesizer="random+vanilla", num_layers=1, dropout_rate=0.0), _counting(6)
    for row in rows:
        row["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(row["labels"][None])[0]
    own = {"label_smoothing_factor": 0.1, "predict_with_generate": True, "generation_max_length": 7, **TRAINING}
    arguments = Seq2SeqTrainingArguments(str(tmp_path), max_steps=24, **own)
    trainer = Seq2SeqTrainer(model, arguments, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    found = torch.as_tensor(trainer.predict(rows).predictions)[:, 1:7]
    assert torch.equal(found, torch.stack([row["labels"] for row in rows]))


@pytest.mark.parametrize("stack", ["functions", "mixtures"])
def test_lora_adapts_the_attention_of_every_variant(stack: str, tiny_lm: Callable, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model, ids = tiny_lm(**STACKS[stack]), torch.randint(3, 53, (2, 7))
    base = copy.deepcopy(model)
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM"))
    for layer in model.model.decoder.layers:
        adapters = ("base_layer", "default")
        assert not [n for n, m in layer.self_attn.named_modules() if type(m) is nn.Linear and not n.endswith(adapters)]
    adapted.train()(ids, labels=ids).loss.backward()
    trained = [p for p in model.parameters() if p.requires_grad]
    assert all(p.grad is not None for p in trained)
    for p in trained:
        nn.init.normal_(p, std=0.1)
    expected = adapted.eval()(ids).logits
    assert not torch.allclose(expected, base(ids).logits, atol=1e-3)
    adapted.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(base, tmp_path).eval()
    torch.testing.assert_close(loaded(ids).logits, expected)
    torch.testing.assert_close(loaded.merge_and_unload()(ids).logits, expected)


def test_lora_on_an_int8_model(tiny_lm: Callable) -> None:
    torchao, peft = (pytest.importorskip(name) for name in ("torchao.quantization", "peft"))
    model, ids = tiny_lm(synthesizer=MIXED), torch.randint(3, 53, (2, 7))
    expected = model(ids).logits
    torchao.quantize_(model, torchao.Int8WeightOnlyConfig())
    assert (model(ids).logits - expected).abs().max() < 0.1 * expected.abs().max()
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM")).train()
    adapted(ids, labels=ids).loss.backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize("head", ["causal", "seq2seq"])
@pytest.mark.parametrize("stack", ["functions", "mixtures"])
def test_every_way_to_generate_gives_the_same_tokens(stack: str, head: str, build: Callable) -> None:
    model, assistant = (build(head, **STACKS[stack]) for _ in range(2))
    ids, options = torch.tensor([[5, 6, 7, 5, 6, 7, 5]]), {"max_new_tokens": 9, "eos_token_id": None}
    expected = model.generate(ids, **options)
    ways = {"assistant_model": assistant, "prompt_lookup_num_tokens": 3, "cache_implementation": "static"}
    for name, value in ways.items():
        assert torch.equal(model.generate(ids, **options, **{name: value}), expected), name


def test_a_model_on_several_devices(tiny: Callable, tmp_path: Path) -> None:
    model, ids = tiny(synthesizer=MIXED), torch.randint(3, 53, (2, 7))
    model.save_pretrained(tmp_path)
    parts = ("embed_tokens", *(f"{side}.{part}" for side in ("encoder", "decoder") for part in ("layers.0", "norm")))
    places = {"lm_head": "cpu", **{f"model.{part}": "cpu" for part in parts}}
    places |= {"model.encoder.layers.1": "disk", "model.decoder.layers.1": "disk"}
    spread = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, device_map=places, offload_folder=tmp_path / "offload")
    assert {p.device.type for p in spread.parameters()} == {"cpu", "meta"}
    expected = model.generate(ids, max_new_tokens=5)
    assert torch.equal(spread.generate(ids, max_new_tokens=5), expected)
    automatic = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, device_map="auto")
    assert torch.equal(automatic.generate(ids, max_new_tokens=5), expected)
