"""Calibration, the choice of heads and distillation, on a tiny model whose heads are made to attend in known ways."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from models.conftest import LONGEST, VOCABULARY, build, tiny_config
from synthesizer_lab.errors import UserError
from synthesizer_lab.heads import choose
from synthesizer_lab.heads.calibrate import AttentionSums, calibrate, low_rank, outer_factors
from synthesizer_lab.heads.choose import Head, choose_heads, mean_loss, measure_heads, replace_heads
from synthesizer_lab.heads.distill import distill, new_parameters
from synthesizer_lab.inspect.collect import attention_layers, attention_weights
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
                name, own = "shift_labels", torch.nn.functional.pad(own[:, 1:], (0, 1), value=-100)
                own = own.clone()
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


@pytest.mark.parametrize("head", ["causal", "masked", "seq2seq"])
def test_a_head_that_attends_by_position_is_found_and_replaced_at_no_cost(build: Build, head: str) -> None:
    model = planted(build, head, num_layers=1 if head == "seq2seq" else 2)
    text = with_own_labels(model, batches(head == "seq2seq"))
    before = copy.deepcopy(model.state_dict())
    (fitted,) = calibrate(model, text, ["random"])
    costs = measure_heads(model, {"random": fitted}, text)
    divergence = torch.stack([each.divergence["random"] for each in costs])
    error = torch.stack([each.error["random"] for each in costs])
    others = torch.ones_like(divergence, dtype=torch.bool)
    others[0, 1] = False
    assert divergence[0, 1] < 1e-4
    assert error[0, 1] < 1e-2
    assert divergence[others].min() > 0.1
    assert costs[0].explained("random")[1] > 0.99 > costs[0].explained("random")[[0, 2]].max()
    choice = choose_heads(model, fitted, text, budget=1 / divergence.numel(), granularity="head")
    assert choice.heads == [Head(0, 1)] == [min(choice.increases, key=choice.increases.__getitem__)]
    assert choice.increases[0, 1] == pytest.approx(0, abs=1e-3)
    new = replace_heads(model, fitted, "random", [Head(0, 1)])
    assert new.config.synthesizers("decoder" if head == "causal" else "encoder")[0] == "random:1/vanilla:2"
    assert abs(mean_loss(new, text) - mean_loss(model, text)) < 1e-3
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


def test_causal_r_is_the_mean_of_a_loop(build: Build) -> None:
    model, text = build("causal", **SIZES, position_embedding_type="learned"), batches()
    (fitted,) = calibrate(model, text, ["random"])
    weights = []
    for row in (row[row > 0] for batch in text for row in batch["input_ids"]):
        (maps,) = attention_weights(model, {"input_ids": row[None], "attention_mask": torch.ones(1, len(row))}).values()
        weights.append(maps[1])
    table = attention_layers(fitted)[1].module.get_parameter("function.table").detach().numpy()
    for row in (0, 2, 9):
        mean = np.mean([w[:, row, : row + 1] for w in weights if w.shape[1] > row], axis=0)
        np.testing.assert_allclose(table[:, row, : row + 1], np.log(mean * (row + 1)), atol=1e-4)


def test_sums_over_sequences_of_several_lengths_are_kept() -> None:
    """The best R: its weights, summed over the text, are those of the text."""
    sums, lengths = AttentionSums(2, 5, False), torch.tensor([5, 3, 4, 2, 5])
    real = torch.arange(5) < lengths[:, None]
    visible = (real[:, None] & real[:, :, None])[:, None]
    weights = torch.randn(5, 2, 5, 5).masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num()
    sums.add(weights, real)
    scores = sums.scores(5)[None].masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num()
    torch.testing.assert_close(scores.sum(0).float(), weights.sum(0), atol=1e-4, rtol=1e-3)


def test_positions_that_the_text_lacks_get_the_mean_at_their_distance() -> None:
    sums = AttentionSums(1, 3, False)
    weights = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.4, 0.4, 0.2]])[None, None]
    sums.add(weights, torch.ones(1, 3, dtype=torch.bool))
    weights, scores = 3 * weights[0, 0], sums.scores(5)[0].exp()
    torch.testing.assert_close(scores[:3, :3].float(), weights)
    for row, column, mean in ((3, 3, (0.5 + 0.6 + 0.2) / 3), (3, 4, 0.3), (4, 3, 0.25), (3, 1, 0.4), (4, 0, 0.4)):
        assert float(scores[row, column]) == pytest.approx(3 * mean)


def test_factors_are_the_truncated_svd_of_centred_rows() -> None:
    scores = torch.randn(2, 7, 7, dtype=torch.float64)
    centred = (scores - scores.mean(-1, keepdim=True)).numpy()
    row, key = low_rank(scores, torch.ones(7, 7, dtype=torch.bool), 2)
    for head in range(2):
        left, sizes, right = np.linalg.svd(centred[head])
        np.testing.assert_allclose((row @ key.mT)[head], (left[:, :2] * sizes[:2]) @ right[:2], atol=1e-10)
    # Of rows and columns that count almost nothing, the others do not depend.
    counts = torch.tensor([1e4] * 3 + [1e-4] * 4)
    row, key = low_rank(scores, torch.ones(7, 7, dtype=torch.bool), 2, counts)
    left, sizes, right = np.linalg.svd(centred[0, :3, :3])
    np.testing.assert_allclose((row @ key.mT)[0, :3, :3], (left[:, :2] * sizes[:2]) @ right[:2], atol=1e-3)
    # Of a causal matrix of rank 2, only what is visible counts.
    visible = torch.ones(7, 7, dtype=torch.bool).tril()
    scores = torch.randn(1, 7, 2, dtype=torch.float64) @ torch.randn(1, 2, 7, dtype=torch.float64)
    hidden = scores.where(visible, 50.0)
    row, key = low_rank(hidden, visible, 3)
    got, want = ((each.masked_fill(~visible, -torch.inf)).softmax(-1) for each in (row @ key.mT, scores))
    plain = torch.linalg.svd(hidden - hidden.mean(-1, keepdim=True))
    rough = (plain[0][..., :3] * plain[1][:, None, :3]) @ plain[2][:, :3]
    assert (got - want).abs().mean() < 0.2 * (rough.masked_fill(~visible, -torch.inf).softmax(-1) - want).abs().mean()


def test_regression_is_numpys() -> None:
    torch.manual_seed(0)
    batch, length, features = 40, 5, 3
    hidden, map_ = torch.randn(batch, 1, length, features), torch.randn(length, features)
    logits = hidden @ map_.T
    logits = logits - logits.mean(-1, keepdim=True)
    sums = AttentionSums(1, length, False, features)
    sums.add_rows(hidden, logits.softmax(-1), torch.ones(batch, length, dtype=torch.bool), None)
    clamped = logits.softmax(-1).clamp_min(1e-4).log()
    target = (clamped - clamped.mean(-1, keepdim=True)).flatten(0, 2).numpy()
    want = np.linalg.lstsq(hidden.flatten(0, 2).numpy(), target, rcond=None)[0]
    np.testing.assert_allclose(sums.regression()[0].T, want, atol=5e-3)


def test_regression_with_rows_of_several_lengths() -> None:
    """A column is fitted to the rows that see it."""
    hidden, length = torch.randn(50, 1, 6, 2), 6
    for is_causal in (True, False):
        real = torch.ones(50, 6, dtype=torch.bool)
        if not is_causal:
            real[::2, 4:] = False
        sums = AttentionSums(1, length, is_causal, 2)
        visible = torch.ones(6, 6, dtype=torch.bool).tril() if is_causal else real[:, None] & real[:, :, None]
        logits = torch.randn(50, 1, 6, 6)
        weights = logits.masked_fill(~visible.view(-1, 1, 6, 6), -torch.inf).softmax(-1).nan_to_num()
        sums.add_rows(hidden, weights, real, None)
        log = weights.clamp_min(1e-4).log().masked_fill(weights == 0, 0)
        log = log - (log.sum(-1) / (weights > 0).sum(-1).clamp_min(1))[..., None]
        for column in (1, 5):
            seen = (weights > 0)[:, 0, :, column]
            want = np.linalg.lstsq(hidden[:, 0][seen].numpy(), log[:, 0, :, column][seen].numpy(), rcond=None)[0]
            np.testing.assert_allclose(sums.regression()[0, column], want, atol=5e-3)


@pytest.mark.parametrize(
    ("name", "positions"),
    [
        ("factorized_random", "sinusoidal"),
        ("factorized_dense", "sinusoidal"),
        ("factorized_dense", "relative"),
        ("dense", "sinusoidal"),
        ("dense", "relative"),
        ("random", "relative"),
        ("relative_random", "relative"),
    ],
)
def test_every_function_is_nearer_than_uniform_attention(build: Build, name: str, positions: str) -> None:
    model, text = build("causal", **SIZES, position_embedding_type=positions), batches()
    with torch.no_grad():
        for layer in attention_layers(model):
            layer.module.get_parameter("function.q_proj.weight").mul_(0.2)
    (fitted,) = calibrate(model, text, [name])
    for costs in measure_heads(model, {name: fitted}, text):
        assert (costs.divergence[name] < costs.divergence["uniform"]).all()
    new = replace_heads(model, fitted, name, [Head(0, 1), Head(1, 0), Head(1, 2)])
    first = f"{name}:1/vanilla:2" if positions == "sinusoidal" else f"vanilla:1/{name}:1/vanilla:1"
    assert new.config.synthesizer[0] == first
    # Each replaced head attends as in the model with all heads replaced, on the same input.
    inputs = {"input_ids": torch.randint(4, VOCABULARY, (1, 9)), "attention_mask": torch.ones(1, 9)}
    (got,), (want,) = attention_weights(new, inputs).values(), attention_weights(fitted, inputs).values()
    np.testing.assert_allclose(got[0][0 if positions == "sinusoidal" else 1], want[0][1], atol=1e-5)


def test_outer_factors_are_those_of_logits_with_a_constant_factor() -> None:
    """Two heads whose logits are constant · linear, one of each kind; with noise where nothing counts."""
    a, b, k = 3, 5, 4
    tiles, blocks = torch.randn(2, a, dtype=torch.float64), torch.randn(2, b, dtype=torch.float64)
    first, second = torch.randn(a, k, dtype=torch.float64), torch.randn(b, k, dtype=torch.float64)
    weights = torch.stack([blocks[0, :, None, None] * first, tiles[1, :, None] * second[:, None]])
    hidden = torch.randn(2, 50, k, dtype=torch.float64).relu()
    hidden[..., -1] = 1
    counts = torch.tensor([7.0, 5, 3, 2, 1e-9], dtype=torch.float64)
    noisy = weights.clone()
    noisy[:, -1] += 1
    tiled, repeated = outer_factors(noisy, hidden.mT @ hidden, counts)
    got = torch.einsum("hnk,hak,hnl,hbl->hnba", hidden, tiled, hidden, repeated)
    torch.testing.assert_close(got[:, :, :4], torch.einsum("hnk,hbak->hnba", hidden, weights)[:, :, :4])


def test_budget_and_limit(build: Build) -> None:
    model, limit = planted(build, "causal"), 0.05
    text = with_own_labels(model, batches(count=1))
    (fitted,) = calibrate(model, text, ["random"])
    everything = [Head(layer, head) for layer in range(2) for head in range(HEADS)]
    assert sorted(choose_heads(model, fitted, text, budget=1.0).heads) == everything
    chosen = choose_heads(model, fitted, text, max_loss_increase=limit, granularity="head").heads
    assert 0 < len(chosen) < len(everything)
    new = replace_heads(model, fitted, "random", chosen)
    assert mean_loss(new, text) <= mean_loss(model, text) + limit + 1e-5
    # Half of a head counts as one. Heads of a causal stack are replaced a layer at a time.
    assert len(choose_heads(model, fitted, text, budget=0.25, granularity="head").heads) == 2
    choice = choose_heads(model, fitted, text, budget=0.6)
    losses = [mean_loss(replace_heads(model, fitted, "random", everything[s]), text) for s in (slice(3), slice(3, 6))]
    assert sorted(choice.heads) == (everything[:3] if losses[0] < losses[1] else everything[3:])
    assert choice.increases.keys() == {*everything}
    with pytest.raises(UserError, match=r"1 of 6 heads.*the 3 heads.*--granularity head"):
        choose_heads(model, fitted, text, budget=0.2)
    with pytest.raises(UserError, match=r"'encoder'.*decoder"):
        choose_heads(model, fitted, text, budget={"encoder": 0.5})


def test_a_budget_for_each_stack(build: Build) -> None:
    model, text = build("seq2seq", **SIZES), batches(seq2seq=True, count=1)
    (fitted,) = calibrate(model, text, ["random"])
    chosen = choose_heads(model, fitted, text, budget={"encoder": 2 / 3, "decoder": 0.5}).heads
    assert len([head for head in chosen if head.layer < 2]) == 4
    (layer,) = {head.layer for head in chosen if head.layer >= 2}
    assert len([head for head in chosen if head.layer == layer]) == HEADS


def test_a_loss_that_is_not_a_number_is_no_small_one(build: Build) -> None:
    model, text = planted(build, "causal"), batches(count=1)
    (fitted,) = calibrate(model, text, ["random"])
    with torch.no_grad():
        attention_layers(fitted)[1].module.get_parameter("function.table").fill_(torch.nan)
    chosen = choose_heads(model, fitted, text, max_loss_increase=100.0).heads
    assert chosen == [Head(0, head) for head in range(HEADS)]


def test_single_heads_are_chosen_where_a_layer_costs_too_much(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head of the decoder costs less, all heads of one of its layers cost more than a head of the encoder."""
    model, text = build("seq2seq", **SIZES), batches(seq2seq=True, count=1)
    before = mean_loss(model, text)
    monkeypatch.setattr(
        choose, "_loss_with", lambda *args: before + sum(0.02 if head.layer < 2 else 0.01 for head in args[2])
    )
    assert choose_heads(model, model, text, max_loss_increase=0.029).heads == [Head(0, 0)]
    assert choose_heads(model, model, text, max_loss_increase=0.051).heads == [
        Head(2, 0),
        Head(2, 1),
        Head(2, 2),
        Head(0, 0),
    ]


def test_distillation_trains_the_new_parameters_alone(build: Build) -> None:
    model, text = build("seq2seq", **SIZES), batches(seq2seq=True)
    (fitted,) = calibrate(model, text, ["dense"])
    new = replace_heads(model, fitted, "dense", [Head(0, 0), Head(2, 1), Head(2, 2)])
    before = {name: parameter.clone() for name, parameter in new.named_parameters()}
    original, errors = copy.deepcopy(model.state_dict()), list[float]()
    distill(new, model, text, 12, learning_rate=0.03, progress=errors.append)
    assert len(errors) == 12
    assert np.mean(errors[-3:]) < 0.9 * np.mean(errors[:3])
    trained = {id(each) for layer in attention_layers(new) for each in new_parameters(layer)}
    for name, parameter in new.named_parameters():
        assert torch.equal(parameter, before[name]) != (id(parameter) in trained), name
        assert parameter.grad is None
    assert all(torch.equal(tensor, original[key]) for key, tensor in model.state_dict().items())


def test_errors(build: Build) -> None:
    model = build("causal", **SIZES)
    with pytest.raises(UserError, match=r"'vanilla'.*random"):
        calibrate(model, batches(count=1), ["vanilla"])
    with pytest.raises(UserError, match="share_heads"):
        calibrate(model, batches(count=1), ["dense"], synthesizer_options={"dense": {"share_heads": True}})
