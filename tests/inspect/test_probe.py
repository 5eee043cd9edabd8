"""Looking into a model: attention weights of every variant, gates, R, and where it started from."""

import numpy as np
import pytest
import torch
from transformers import set_seed

from synthetic_attention import SynthesizerConfig, SynthesizerForCausalLM, SynthesizerForConditionalGeneration
from synthetic_attention.inspect.probe import CROSS, attention_weights, descends, descent, initial_model, layers
from synthetic_attention.synthesizers import known

NAMES = [*known(), "random+vanilla", "dense+vanilla", "random+dense"]
IDS = torch.tensor([[5, 6, 7, 8, 2]])


def _config(synthesizer: object, layers: int, **fields: object) -> SynthesizerConfig:
    sizes = {"vocab_size": 11, "d_model": 12, "num_heads": 3, "d_ff": 8, "max_position_embeddings": 13}
    return SynthesizerConfig(**{**sizes, "num_layers": layers, "synthesizer": synthesizer, **fields})


def _check(weights: np.ndarray, rows: int, columns: int, is_causal: bool) -> None:
    assert weights.shape == (3, rows, columns)
    assert np.allclose(weights.sum(axis=-1), 1, atol=1e-5)
    assert is_causal == bool(np.allclose(weights[:, np.triu(np.ones((rows, columns)), 1).astype(bool)], 0))


def test_every_variant_of_an_encoder_decoder_shows_its_weights() -> None:
    model = SynthesizerForConditionalGeneration(_config(NAMES, len(NAMES))).eval()
    found = attention_weights(model, {"input_ids": IDS, "decoder_input_ids": IDS[:, :4]})
    assert {stack: len(of_layers) for stack, of_layers in found.items()} == dict.fromkeys(
        ("encoder", "decoder", CROSS), len(NAMES)
    )
    for index in range(len(NAMES)):
        _check(found["encoder"][index], 5, 5, False)
        _check(found["decoder"][index], 4, 4, True)
        _check(found[CROSS][index], 4, 5, False)


def test_every_variant_of_a_causal_model_shows_its_weights() -> None:
    model = SynthesizerForCausalLM(_config(NAMES, len(NAMES))).eval()
    found = attention_weights(model, {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)})
    assert list(found) == ["decoder"]
    for weights in found["decoder"]:
        _check(weights, 5, 5, True)
    assert [(layer.stack, layer.number, layer.is_causal) for layer in layers(model)[:2]] == [
        ("decoder", 1, True),
        ("decoder", 2, True),
    ]


def test_layers_say_what_they_are_made_of() -> None:
    names = {"encoder": ["random", "dense+factorized_random"], "decoder": ["vanilla", "random+random"]}
    model = SynthesizerForConditionalGeneration(_config(names, 2))
    found = layers(model)
    assert [(layer.stack, layer.number) for layer in found] == [
        ("encoder", 1),
        ("encoder", 2),
        ("decoder", 1),
        ("decoder", 2),
    ]
    assert [list(layer.functions) for layer in found] == [
        ["random"],
        ["dense", "factorized_random"],
        ["vanilla"],
        ["random", "random (2)"],
    ]
    assert [layer.gates() is None for layer in found] == [True, False, True, False]
    assert np.allclose(found[1].gates(), 0.5)
    assert [list(layer.tables(4)) for layer in found] == [
        ["random"],
        ["factorized_random"],
        [],
        ["random", "random (2)"],
    ]
    table = found[0].tables(4)["random"]
    assert np.array_equal(table, model.encoder.layers[0].self_attention.function.table[:, :4, :4].detach().numpy())
    factors = model.encoder.layers[1].self_attention.function.parts[1]
    product = (factors.row_factor @ factors.key_factor.mT)[:, :4, :4].detach().numpy()
    assert np.allclose(found[1].tables(4)["factorized_random"], product, atol=1e-6)


@pytest.mark.parametrize("gate", ["sigmoid", "sum"])
def test_other_gates(gate: str) -> None:
    options = {"mixture": {"gate": gate}}
    model = SynthesizerForConditionalGeneration(_config("random+vanilla", 1, synthesizer_options=options))
    gates = layers(model)[0].gates()
    assert gates is None if gate == "sum" else gates.tolist() == [[0.5], [0.5]]


def _train(model: torch.nn.Module, steps: int = 60) -> None:
    """Teach the model a copy of five tokens: positions after them are not reached."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(steps):
        optimizer.zero_grad()
        model(input_ids=IDS, labels=IDS).loss.backward()
        optimizer.step()


@pytest.mark.parametrize("synthesizer", ["random", "fixed_random", "factorized_random+vanilla", "random+fixed_random"])
def test_the_start_of_a_trained_model_is_found_again_from_its_seed(synthesizer: str) -> None:
    set_seed(7)
    model = SynthesizerForConditionalGeneration(_config(synthesizer, 2))
    start = {name: value.clone() for name, value in model.state_dict().items()}
    _train(model)
    before = initial_model(model, 7)
    for name, value in before.state_dict().items():
        assert torch.equal(value, start[name]), name
    found = descent(before, model)
    assert found is not None
    assert found.certain
    assert found.unchanged == 1 if synthesizer == "fixed_random" else 0.3 < found.unchanged < 1
    wrong = descent(initial_model(model, 8), model)
    assert wrong is not None
    assert not wrong.certain
    assert wrong.unchanged < 0.01


def test_a_start_is_certain_even_where_every_weight_was_trained() -> None:
    set_seed(7)
    model = SynthesizerForConditionalGeneration(_config("random", 2))
    with torch.no_grad():
        for layer in layers(model):
            layer.module.function.table += 0.01 * torch.randn(3, 13, 13)
    found = descent(initial_model(model, 7), model)
    assert found is not None
    assert (found.certain, found.unchanged) == (True, 0)
    wrong = descent(initial_model(model, 8), model)
    assert wrong is not None
    assert not wrong.certain


def test_without_r_there_is_no_start_to_find() -> None:
    model = SynthesizerForConditionalGeneration(_config("dense+vanilla", 1))
    assert descent(initial_model(model, 0), model) is None


@pytest.mark.parametrize("synthesizer", ["vanilla", "random+vanilla", "fixed_random"])
def test_the_start_of_the_whole_model_is_found_again_from_its_seed(synthesizer: str) -> None:
    set_seed(7)
    model = SynthesizerForConditionalGeneration(_config(synthesizer, 2))
    _train(model, steps=10)
    assert descends(initial_model(model, 7), model)
    assert not descends(initial_model(model, 8), model)
