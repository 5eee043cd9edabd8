"""Calibration, the choice of heads and distillation, on a tiny model whose heads are made to attend in known ways."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from models.conftest import LONGEST, STACKS, VOCABULARY, build, tiny_config
from synthesizer_lab.attention.fitting import explained, factorize, fit, measure_divergences
from synthesizer_lab.attention.layers import attention_layers, hooked, mean_loss
from synthesizer_lab.errors import UserError
from synthesizer_lab.heads.choose import Head, choose_heads, replace_heads
from synthesizer_lab.heads.distill import distill, new_parameters
from synthetic_attention.models import SynthesizerPreTrainedModel

__all__ = ["build", "tiny_config"]
Build = Callable[..., SynthesizerPreTrainedModel]
HEADS, WIDTH = 3, 6
SIZES = {"synthesizer": "vanilla", "num_heads": HEADS, "d_model": 18, "num_layers": 2, "dropout_rate": 0.0}


def batches(seq2seq: bool = False, count: int = 2) -> list[dict[str, Tensor]]:
    """Batches padded on the right, of lengths up to the longest."""
    found = []
    for number in range(count):
        lengths = torch.randint(3, LONGEST + 1, (5,))
        lengths[0] = LONGEST - number % 2
        mask = (torch.arange(int(lengths.max())) < lengths[:, None]).long()
        ids = torch.randint(4, VOCABULARY, mask.shape)
        labels = ids.where(mask > 0, -100)
        if seq2seq:
            labels = labels[:, :-1]
        else:
            labels[:, 0] = -100
        found.append({"input_ids": ids * mask, "attention_mask": mask, "labels": labels})
    return found


def with_own_labels(model: Any, text: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    """The text with what the model itself predicts: the loss is near zero, and other attention makes it larger."""
    found = []
    with torch.no_grad():
        model.lm_head.weight.mul_(20)
        for batch in text:
            batch, own = dict(batch), batch["labels"]
            if model.config.is_encoder_decoder:
                batch["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(own)
            name = "labels"
            if model.can_generate() and not model.config.is_encoder_decoder:
                name, own = "shift_labels", nn.functional.pad(own[:, 1:], (0, 1), value=-100)
            outputs = model(**{key: value for key, value in batch.items() if key != "labels"})
            found.append({**batch, name: outputs.logits.argmax(-1).where(own != -100, -100)})
    return found


def by_position(model: SynthesizerPreTrainedModel, layer: int, head: int) -> None:
    """Make a head of a pre-norm model with learned positions attend by position alone: a key's logit is its norm's."""
    attention: Any = attention_layers(model)[layer].module
    function = attention.function
    rows = slice(head * WIDTH, (head + 1) * WIDTH)
    # Queries are constants; keys read two features that only positions write.
    nn.init.zeros_(function.q_proj.weight[rows])
    function.q_proj.bias[rows] = 3.0
    nn.init.zeros_(function.k_proj.weight[rows])
    function.k_proj.weight[rows, -2:] = torch.randn(WIDTH, 2)


def planted(build: Build, head: str, **fields: Any) -> SynthesizerPreTrainedModel:
    """A model without norms before attention that mix features: head 1 of layer 0 attends by position alone."""
    fields = {**SIZES, "position_embedding_type": "learned", "scale_embedding": False, "pre_norm": False, **fields}
    model = build(head, **fields)
    with torch.no_grad():
        model.get_input_embeddings().weight[:, -2:] = 0
        for stack in model.modules():
            if hasattr(stack, "embed_positions"):
                stack.embed_positions.weight[:, -2:] = torch.randn(LONGEST, 2)
        for name, parameter in model.named_parameters():
            if "q_proj" in name or "k_proj" in name:
                parameter.mul_(3)
        by_position(model, 0, 1)
    return model


def weights_of(model: SynthesizerPreTrainedModel, ids: Tensor) -> list[np.ndarray]:
    """(H, T, T) of each layer, for a row of ids."""
    with torch.no_grad():
        return [each[0].numpy() for each in model(ids[None], output_attentions=True).attentions]


@pytest.mark.parametrize("head", ["causal", "masked", "seq2seq"])
def test_a_head_that_attends_by_position_is_found_and_replaced_at_no_cost(build: Build, head: str) -> None:
    model = planted(build, head, num_layers=1 if head == "seq2seq" else 2)
    text = with_own_labels(model, batches(head == "seq2seq"))
    before = copy.deepcopy(model.state_dict())
    fitted = fit(model, text)
    found = measure_divergences(model, fitted, text)
    divergence = torch.stack([each["random"] for each in found])
    others = torch.ones_like(divergence, dtype=torch.bool)
    others[0, 1] = False
    assert divergence[0, 1] < 1e-4
    assert divergence[others].min() > 0.1
    shares = [each["explained_by_random"] for each in explained(found[0])]
    assert shares[1] > 0.99 > max(shares[0], shares[2])
    if head != "causal":
        heads, increases = choose_heads(model, fitted["random"], text, 1 / divergence.numel())
        assert heads == [Head(0, 1)] == [min(increases, key=increases.__getitem__)]
        assert increases[Head(0, 1)] == pytest.approx(0, abs=1e-3)
    new = replace_heads(model, fitted["random"], "random", [Head(0, 1)])
    assert new.config.synthesizers("decoder" if head == "causal" else "encoder")[0] == "random:1/vanilla:2"
    assert abs(mean_loss(new, text) - mean_loss(model, text)) < 1e-3
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


def test_causal_r_is_the_mean_of_a_loop(build: Build) -> None:
    model, text = build("causal", **SIZES, position_embedding_type="learned"), batches()
    weights = [weights_of(model, row[row > 0])[1] for batch in text for row in batch["input_ids"]]
    table = attention_layers(fit(model, text)["random"])[1].module.get_parameter("function.table").detach().numpy()
    for row in (0, 2, 9):
        mean = np.mean([w[:, row, : row + 1] for w in weights if w.shape[1] > row], axis=0)
        np.testing.assert_allclose(table[:, row, : row + 1], np.log(mean * (row + 1)), atol=1e-4)


@pytest.mark.parametrize("name", ["random", "dense"])
@pytest.mark.parametrize("positions", ["sinusoidal", "relative"])
def test_every_function_is_nearer_than_uniform_attention(build: Build, name: str, positions: str) -> None:
    model, text = build("causal", **SIZES, position_embedding_type=positions), batches()
    with torch.no_grad():
        for layer in attention_layers(model):
            layer.module.get_parameter("function.q_proj.weight").mul_(0.2)
    fitted = fit(model, text)
    fitted["factorized_random"] = factorize(fitted["random"])
    assert all((each[name] < each["uniform"]).all() for each in measure_divergences(model, fitted, text))
    new = replace_heads(model, fitted[name], name, [Head(0, 1), Head(1, 0), Head(1, 2)])
    first = f"{name}:1/vanilla:2" if positions == "sinusoidal" else f"vanilla:1/{name}:1/vanilla:1"
    assert new.config.synthesizer[0] == first
    # Each replaced head attends as in the model with all heads replaced, on the same input.
    ids = torch.randint(4, VOCABULARY, (9,))
    got, want = weights_of(new, ids), weights_of(fitted[name], ids)
    np.testing.assert_allclose(got[0][0 if positions == "sinusoidal" else 1], want[0][1], atol=1e-5)


def test_factors_of_a_causal_r_do_not_depend_on_the_future(build: Build) -> None:
    fitted = fit(build("causal", **SIZES), batches())["random"]
    for layer in attention_layers(fitted):
        table = layer.module.get_parameter("function.table")
        with torch.no_grad():
            table.copy_(torch.randn(*table.shape[:2], 3) @ torch.randn(table.shape[0], 3, table.shape[-1]) / 3)
            table += torch.triu(torch.full_like(table, 5.0), 1)
    ids = torch.randint(4, VOCABULARY, (LONGEST,))
    for got, want in zip(weights_of(factorize(fitted), ids), weights_of(fitted, ids), strict=True):
        np.testing.assert_allclose(got, want, atol=2e-3)


def test_a_budget_is_for_whole_layers_of_a_decoder(build: Build) -> None:
    model = planted(build, "causal")
    text = with_own_labels(model, batches(count=1))
    fitted = fit(model, text)["random"]
    everything = [Head(layer, head) for layer in range(2) for head in range(HEADS)]
    assert sorted(choose_heads(model, fitted, text, 1.0)[0]) == everything
    heads, increases = choose_heads(model, fitted, text, 0.6)
    losses = [mean_loss(replace_heads(model, fitted, "random", everything[s]), text) for s in (slice(3), slice(3, 6))]
    assert sorted(heads) == (everything[:3] if losses[0] < losses[1] else everything[3:])
    assert increases.keys() == {*everything}
    with pytest.raises(UserError, match=r"1 of 6 heads.*enough for 3"):
        choose_heads(model, fitted, text, 0.2)
    with pytest.raises(UserError, match=r"'encoder'.*decoder"):
        choose_heads(model, fitted, text, {"encoder": 0.5})


def test_heads_that_share_a_value_are_replaced_together(build: Build) -> None:
    fields = {**SIZES, **STACKS["rotary"], "synthesizer": "vanilla", "num_layers": 2}
    model, text = build("masked", **fields), batches()
    fitted = fit(model, text)["random"]
    chosen, increases = choose_heads(model, fitted, text, 0.25)
    assert len(increases) == 8
    # Of four heads the first two share a value, and the last two.
    assert chosen == [Head(chosen[0].layer, first := chosen[0].head), Head(chosen[0].layer, first + 1)]
    assert not first % 2
    pairs = [[Head(layer, head), Head(layer, head + 1)] for layer in (0, 1) for head in (0, 2)]
    losses = [mean_loss(replace_heads(model, fitted, "random", pair), text) for pair in pairs]
    assert losses[pairs.index(chosen)] == pytest.approx(min(losses), abs=1e-5)
    with pytest.raises(UserError, match=r"1 of 8 heads.*enough for 2"):
        choose_heads(model, fitted, text, 0.1)


def test_distillation_trains_the_new_parameters_alone(build: Build) -> None:
    model, text = build("seq2seq", **SIZES), batches(seq2seq=True)
    new = replace_heads(model, fit(model, text)["dense"], "dense", [Head(0, 0), Head(2, 1), Head(2, 2)])
    before = {name: parameter.clone() for name, parameter in new.named_parameters()}
    original = copy.deepcopy(model.state_dict())
    layers, errors = attention_layers(new), list[float]()

    def measure(index: int, args: Sequence[Any], output: Tensor) -> None:
        errors.append(float(((layers[index].module(*args) - output).square().sum() / output.square().sum()).detach()))

    for steps in (0, 12):
        distill(new, model, text, steps, learning_rate=0.03)
        with hooked(attention_layers(model), measure):
            mean_loss(model, text)
    first, last = np.array(errors).reshape(2, -1).mean(1)
    assert last < 0.9 * first
    trained = {id(each) for layer in attention_layers(new) for each in new_parameters(layer)}
    for name, parameter in new.named_parameters():
        assert torch.equal(parameter, before[name]) != (id(parameter) in trained), name
        assert parameter.grad is None
    assert all(torch.equal(tensor, original[key]) for key, tensor in model.state_dict().items())
