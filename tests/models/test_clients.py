"""What people run on the models: Trainer, PEFT, torchao, ways to generate, a model on several devices."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import functional as F
from transformers import (
    AutoModelForSeq2SeqLM,
    DataCollatorWithFlattening,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainingArguments,
)
from transformers.utils.generic import find_labels

from models.conftest import HEADS, STACKS
from synthetic_attention import generate

pytestmark = pytest.mark.filterwarnings("ignore:`(is_)?gradient_checkpointing`|TorchaoLoraLinear was instantiated")
MIXED = ["random+vanilla", "factorized_dense"]
# Two- or three-dimensional parameters by function: R, R₁ and R₂, W₂ and b₂, and so on.
PARAMETERS = {
    "random": ["table"],
    "factorized_random": ["row_factor", "key_factor"],
    "relative_random": ["offsets"],
    "dense": ["key", "key_bias"],
    "factorized_dense": ["function.weight", "function.bias"],
    "random+vanilla": ["table"],
}
TRAINING: dict[str, Any] = dict.fromkeys(("use_cpu", "bf16", "gradient_checkpointing", "disable_tqdm"), True)
TRAINING |= {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "learning_rate": 3e-2}
TRAINING |= {"dataloader_pin_memory": False, "report_to": "none", "save_strategy": "no"}


def _counting(length: int) -> list[dict[str, Tensor]]:
    """Rows of numbers, each one more than that before."""
    rows = [(torch.arange(length) + start) % 10 + 4 for start in range(16)]
    return [{"input_ids": row, "labels": row} for row in rows]


def test_trainer_trains_on_flattened_batches(tiny_lm: Callable, tmp_path: Path) -> None:
    model, rows = tiny_lm(synthesizer="random+vanilla", num_layers=1, dropout_rate=0.0), _counting(8)
    trainer = Trainer(model, TrainingArguments(str(tmp_path), max_steps=3, **TRAINING), train_dataset=rows)
    trainer.data_collator = DataCollatorWithFlattening()
    ids = torch.stack([row["input_ids"] for row in rows])
    before = model(ids, labels=ids).loss
    torch.testing.assert_close(trainer.compute_loss(model, trainer.data_collator(rows)), before)
    trainer.train()
    assert model.eval()(ids, labels=ids).loss < before - 0.1


@pytest.mark.parametrize("head", ["causal", "masked", "tagger"])
def test_trainer_keeps_the_columns_of_packed_texts(head: str, build: Callable, tmp_path: Path) -> None:
    rows = [{"input_ids": [5, 6], "labels": [5, 6], "segment_ids": [1, 2], "position_ids": [0, 0]}]
    trainer = Trainer(build(head), TrainingArguments(str(tmp_path), **TRAINING), train_dataset=rows)
    assert next(iter(trainer.get_train_dataloader())).keys() == rows[0].keys()


@pytest.mark.parametrize("head", HEADS)
def test_trainer_scores_and_loads_the_best_model_of(head: str, build: Callable, tmp_path: Path) -> None:
    model, rows, scored = build(head, num_labels=53, num_layers=1, synthesizer="dense"), _counting(6), []
    for row in rows:
        row["labels"] = row["labels"][2] if head == "classifier" else row["labels"]
    # Training on other labels makes these less likely with every step.
    others = [{**row, "labels": row["labels"] + 20} for row in rows]
    assert find_labels(type(model)) == ["labels"]
    # All defaults, but for the machine: also of `label_names` and `metric_for_best_model`.
    own: dict[str, Any] = {"use_cpu": True, "dataloader_pin_memory": False, "report_to": "none", "disable_tqdm": True}
    own |= {"max_steps": 3, "learning_rate": 1e-2, "load_best_model_at_end": True}
    own |= {f"{what}_strategy": "steps" for what in ("eval", "save")} | {"eval_steps": 1, "save_steps": 1}
    trainer = Trainer(
        model,
        TrainingArguments(str(tmp_path), **own),
        train_dataset=others,
        eval_dataset=rows,
        compute_metrics=lambda found: scored.append(found.label_ids) or {"scored": len(found.label_ids)},
    )
    trainer.train()
    losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert losses == sorted(set(losses))
    found = trainer.evaluate()
    assert (found["eval_loss"], found["eval_scored"]) == (pytest.approx(losses[0]), len(rows))
    labels = torch.stack([row["labels"] for row in rows]).numpy()
    assert all((seen == labels).all() for seen in (*scored, trainer.predict(rows).label_ids))


@pytest.mark.parametrize("head", HEADS)
def test_trainer_smooths_the_labels_of(head: str, build: Callable, tmp_path: Path) -> None:
    model = build(head, num_labels=53, dropout_rate=0.0, num_layers=1, synthesizer="dense").train()
    ids = torch.randint(3, 53, (4, 6))
    labels = ids[:, 2] if head == "classifier" else ids.clone()
    arguments = TrainingArguments(str(tmp_path), label_smoothing_factor=0.1, **TRAINING)
    # Trainer takes the labels away from the model.
    inputs = {"input_ids": ids, **({"decoder_input_ids": ids} if head == "seq2seq" else {})}
    found = Trainer(model, arguments).compute_loss(model, {**inputs, "labels": labels})
    own, logits = model(**inputs, labels=labels, smoothing=0.1).loss, model(**inputs).logits
    if head == "causal":
        # Trainer shifts labels only for the names that it finds in transformers' tables.
        logits, labels = logits[:, :-1], labels[:, 1:]
    expected = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), label_smoothing=0.1)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(own, expected)


def test_seq2seq_trainer_trains_and_generates(tiny: Callable, tmp_path: Path) -> None:
    model, rows = tiny(synthesizer="random+vanilla", num_layers=1), _counting(6)
    for row in rows:
        row["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(row["labels"][None])[0]
    own = {"label_smoothing_factor": 0.1, "predict_with_generate": True, "generation_max_length": 7, **TRAINING}
    arguments = Seq2SeqTrainingArguments(str(tmp_path), max_steps=2, **own)
    trainer, before = Seq2SeqTrainer(model, arguments, train_dataset=rows), copy.deepcopy(model.state_dict())
    trainer.train()
    assert not any(torch.equal(before[name], parameter) for name, parameter in model.named_parameters())
    found = torch.as_tensor(trainer.predict(rows).predictions)
    ids = torch.stack([row["input_ids"] for row in rows])
    assert torch.equal(found[:, :7], model.eval().generate(ids, max_length=7))


@pytest.mark.parametrize("head", ["causal", "seq2seq"])
def test_accumulated_batches_train_as_one(head: str, build: Callable, tmp_path: Path) -> None:
    rows, states = _counting(6), []
    for number, row in enumerate(rows):
        # Batches have different numbers of labels.
        row["labels"] = row["labels"].masked_fill(torch.arange(6) < number % 5, -100)
        if head == "seq2seq":
            row["decoder_input_ids"] = row["input_ids"]
    kind, options = (Trainer, TrainingArguments) if head == "causal" else (Seq2SeqTrainer, Seq2SeqTrainingArguments)
    own = {**TRAINING, "optim": "sgd", "learning_rate": 1.0, "max_grad_norm": 0.0, "max_steps": 1, "bf16": False}
    own["label_smoothing_factor"] = 0.1 * (head == "seq2seq")
    start = build(head, synthesizer="dense", num_layers=1, dropout_rate=0.0)
    for batches in (1, 2):
        own |= {"per_device_train_batch_size": 16 // batches, "gradient_accumulation_steps": batches}
        own["gradient_checkpointing"] = batches == 2
        model = copy.deepcopy(start)
        kind(model, options(str(tmp_path), **own), train_dataset=rows).train()
        states.append(model.state_dict())
    torch.testing.assert_close(states[0], states[1])
    assert not torch.equal(states[0]["lm_head.weight"], start.lm_head.weight)


@pytest.mark.parametrize("stack", ["functions", pytest.param("mixtures", marks=pytest.mark.slow)])
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


@pytest.mark.parametrize("name", PARAMETERS)
def test_lora_on_the_parameters_of(name: str, tiny_lm: Callable) -> None:
    peft = pytest.importorskip("peft")
    options: dict[str, Any] = {"max_new_tokens": 6, "eos_token_id": None}
    model, ids = tiny_lm(synthesizer=name, num_layers=1, dropout_rate=0.0), torch.randint(3, 53, (2, 7))
    config = peft.LoraConfig(r=2, target_modules=["v_proj"], target_parameters=PARAMETERS[name])
    adapted = peft.get_peft_model(model, config)
    adapters = [p for name, p in model.named_parameters() if p.requires_grad and ".function." in name]
    assert len(adapters) == 2 * len(PARAMETERS[name])
    for p in adapters:
        nn.init.normal_(p)
    with torch.no_grad():
        before = model.eval()(ids).logits
    model.train()(ids, labels=ids).loss.backward()
    assert all(p.grad is not None and p.grad.any() for p in adapters)
    torch.optim.SGD(adapters, lr=10.0).step()
    with torch.no_grad():
        expected = model.eval()(ids).logits
    assert not torch.allclose(expected, before, atol=1e-3)
    tokens = model.generate(ids, **options)
    assert torch.equal(generate(model, ids, **options), tokens)
    merged = adapted.merge_and_unload()
    torch.testing.assert_close(merged(ids).logits, expected)
    assert torch.equal(generate(merged, ids, **options), tokens)


@pytest.mark.parametrize("name", ["random", "random/vanilla", "random+vanilla"])
def test_prefix_tuning_needs_keys_of_every_head(name: str, tiny_lm: Callable) -> None:
    peft = pytest.importorskip("peft")
    model, ids = tiny_lm(synthesizer=name), torch.randint(3, 53, (2, 7))
    adapted = peft.get_peft_model(model, peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))
    if name == "random+vanilla":
        adapted(input_ids=ids, labels=ids).loss.backward()
        assert all(p.grad is not None for p in adapted.parameters() if p.requires_grad)
    else:
        with pytest.raises(ValueError, match=r"DynamicLayer for layer 0.*Prefix tuning.*vanilla.*LoRA"):
            adapted(input_ids=ids, labels=ids)


def test_lora_on_the_head(tiny_lm: Callable) -> None:
    peft = pytest.importorskip("peft")
    model, ids = tiny_lm(synthesizer="random", num_layers=1, dropout_rate=0.0), torch.randint(3, 53, (2, 7))
    assert model.config.fused_loss
    config = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["v_proj", "lm_head"])
    adapted = peft.get_peft_model(model, config).train()
    adapters = [p for p in model.lm_head.parameters() if p.requires_grad]
    for p in adapters:
        nn.init.normal_(p)
    loss = adapted(ids, labels=ids).loss
    torch.testing.assert_close(loss, F.cross_entropy(adapted(ids).logits[:, :-1].mT, ids[:, 1:]))
    loss.backward()
    assert len(adapters) == 2
    assert all(p.grad is not None and p.grad.any() for p in adapters)


def test_a_model_on_several_devices(tiny: Callable, tmp_path: Path) -> None:
    model, ids = tiny(synthesizer=MIXED), torch.randint(3, 53, (2, 7))
    model.save_pretrained(tmp_path)
    parts = ("embed_tokens", *(f"{side}.{part}" for side in ("encoder", "decoder") for part in ("layers.0", "norm")))
    places = {"lm_head": "cpu", **{f"model.{part}": "cpu" for part in parts}}
    places |= {"model.encoder.layers.1": "disk", "model.decoder.layers.1": "disk"}
    spread = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, device_map=places, offload_folder=tmp_path / "offload")
    assert {p.device.type for p in spread.parameters()} == {"cpu", "meta"}
    assert torch.equal(spread.generate(ids, max_new_tokens=5), model.generate(ids, max_new_tokens=5))


@pytest.mark.parametrize("head", ["causal", "masked", "classifier"])
def test_padding_and_labels_on_two_devices(head: str, build: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AlignDevicesHook, "init_hook", lambda _, module: module)
    model, mode = build(head, position_embedding_type="learned").eval(), FakeTensorMode(allow_non_fake_inputs=True)
    stack = model.model.decoder or model.model.encoder
    embed, parts = model.model.embed_tokens, (stack.norm, stack.embed_positions, *[*model.children()][1:])
    first = [stack.layers[0], *([] if head == "masked" else [embed])]
    for part in (embed, *stack.layers, *parts):
        place = torch.device("cpu", int(part not in first))
        for module in part.modules():
            own = ((name, p) for name, p in module._parameters.items() if p is not None)
            module._parameters |= {name: FakeTensor(mode, p.data.to("meta"), place) for name, p in own}
        add_hook_to_module(part, AlignDevicesHook(place))
    with mode, torch.no_grad():
        ids = FakeTensor(mode, torch.ones(2, 5, dtype=torch.long, device="meta"), torch.device("cpu", 0))
        out = model(ids, ids, labels=ids[:, 0] if head == "classifier" else ids, output_hidden_states=True)
    assert out.loss.shape == ()
    assert {state.device for state in out.hidden_states} == {ids.device}
