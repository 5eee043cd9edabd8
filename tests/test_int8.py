"""int8 linear layers: the rounding, rows that do not depend on each other, whole models, and what is refused."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import T5Config, T5ForConditionalGeneration

from models.conftest import build, tiny_config
from synthetic_attention import generate, quantize_int8
from synthetic_attention.kernels import Int8Linear, int8

__all__ = ["build", "tiny_config"]


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_rounds_weights_by_output_and_inputs_by_row(bias: bool) -> None:
    linear = nn.Linear(13, 7, bias=bias)
    x = torch.randn(2, 5, 13) * torch.logspace(-3, 3, 5)[:, None]
    x[1, 3] = 0
    w_scale, x_scale = (each.abs().amax(-1, keepdim=True) / 127 for each in (linear.weight.double(), x.double()))
    w, rows = (linear.weight / w_scale).round(), (x / x_scale.clamp(min=1e-12)).round()
    expected = (rows @ w.mT) * x_scale * w_scale.mT + (linear.bias if bias else 0)
    layer = Int8Linear(linear)
    torch.testing.assert_close(layer(x), expected.detach().float())
    torch.testing.assert_close(layer(x[0, :1]), layer(x)[0, :1], rtol=0, atol=0)
    assert layer(x[:0]).shape == (0, 5, 7)
    assert layer(x.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("head", "synthesizer"),
    [("seq2seq", "random:1/vanilla:1"), ("causal", "dense+random"), ("classifier", "linformer")],
)
def test_models_stay_close_and_rows_do_not_depend_on_each_other(
    build: Callable, head: str, synthesizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = build(head, synthesizer=synthesizer)
    assert quantize_int8(copy.deepcopy(model)).state_dict().keys() == model.state_dict().keys()
    monkeypatch.setattr(int8, "SMALLEST_WEIGHT", 0)
    quantized: Any = quantize_int8(copy.deepcopy(model))
    assert not any(type(module) is nn.Linear for module in quantized.modules())
    assert not any(parameter.requires_grad for parameter in quantized.parameters())
    ids = torch.randint(3, 17, (3, 6))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    inputs["attention_mask"][0, 4:] = 0
    given = {**inputs, "decoder_input_ids": ids} if head == "seq2seq" else inputs
    expected, found = model(**given).logits, quantized(**given).logits
    assert 0 < (found - expected).norm() < 0.05 * expected.norm()
    alone = quantized(**{name: tensor[1:2] for name, tensor in given.items()}).logits
    torch.testing.assert_close(alone, found[1:2])
    if model.can_generate():
        embedding = quantized.get_input_embeddings().weight
        torch.testing.assert_close(embedding, model.get_input_embeddings().weight, rtol=0, atol=0)
        settings = {**inputs, "max_new_tokens": 4, "num_beams": 2, "eos_token_id": None}
        assert generate(quantized, **settings).tolist() == quantized.generate(**settings).tolist()


def test_models_of_transformers_that_look_at_the_dtype_of_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8, "SMALLEST_WEIGHT", 0)
    model = T5ForConditionalGeneration(T5Config(vocab_size=17, d_model=8, d_ff=12, d_kv=4, num_layers=1, num_heads=2))
    ids = torch.randint(3, 17, (2, 5))
    expected = model.eval()(input_ids=ids, decoder_input_ids=ids).logits
    found = quantize_int8(model)(input_ids=ids, decoder_input_ids=ids).logits
    assert 0 < (found - expected).norm() < 0.05 * expected.norm()


def test_what_int8_is_not_for(build: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(int8, "SMALLEST_WEIGHT", 0)
    with pytest.raises(ValueError, match="before quantize_int8"):
        quantize_int8(build("causal")).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"meta.*CPU"):
        quantize_int8(build("causal").to("meta"))
