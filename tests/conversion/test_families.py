"""Every family that can be converted computes what the source does."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from conversion.conftest import SOURCES
from synthetic_attention import convert, generate
from synthetic_attention.conversion import synthesize

Sources = Callable[[str], PreTrainedModel]
# Models with different layers, and those that generate.
GENERATING = ["t5", "bart", "marian", "mbart", "pegasus", "gpt2", "opt", "llama", "mistral", "qwen2", "qwen3"]
MIXED = [*GENERATING, "bert", "distilbert"]
# The lengths of the rows of a batch.
LENGTHS = [9, 6, 2]


def batch(model: PreTrainedModel, left: bool = False) -> dict[str, Tensor]:
    """Three rows of ids with padding, and the inputs that only some models take."""
    ids = torch.randint(3, 53, (3, 9), generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(9) < torch.tensor(LENGTHS)[:, None]).long()
    if left:
        ids, mask = (torch.stack([row.roll(9 - n) for row, n in zip(x, LENGTHS, strict=True)]) for x in (ids, mask))
    inputs = {"input_ids": ids.where(mask == 1, model.config.pad_token_id), "attention_mask": mask}
    if model.config.model_type == "bert":
        inputs["token_type_ids"] = ids % 2
    elif model.config.is_encoder_decoder and not type(model).__name__.endswith("EncoderModel"):
        inputs["decoder_input_ids"] = torch.arange(3, 18).view(3, 5)
    return inputs


@torch.no_grad()
def output(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    outputs = model(**inputs)
    y: Tensor = outputs.logits if "logits" in outputs else outputs.last_hidden_state
    return y


def real(y: Tensor, inputs: dict[str, Tensor]) -> Tensor:
    """The outputs (B, …) or those of real tokens (tokens, …)."""
    return y[inputs["attention_mask"].bool()] if y.shape[1] == 9 else y


def check(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", SOURCES)
def test_outputs_are_those_of_the_source(name: str, sources: Sources) -> None:
    theirs = sources(name)
    ours, inputs = convert(theirs), batch(theirs)
    expected = real(output(theirs, inputs), inputs)
    # Not all the same: a constant would be equal for other weights too.
    assert expected.std(0).mean() > 0.03
    check(real(output(ours, inputs), inputs), expected)

    # A row that is padded on the left gives what the source gives for the row alone.
    inputs = batch(theirs, left=True)
    actual = output(ours, inputs)
    for row, length in enumerate(LENGTHS):
        alone = {key: x[row : row + 1] if "decoder" in key else x[row : row + 1, -length:] for key, x in inputs.items()}
        expected = output(theirs, alone)
        check(actual[row : row + 1, -length:] if actual.shape[1] == 9 else actual[row : row + 1], expected)


@pytest.mark.parametrize("name", MIXED)
def test_mixtures_with_vanilla_compute_the_same(name: str, sources: Sources) -> None:
    theirs = sources(name)
    before, inputs = copy.deepcopy(theirs.state_dict()), batch(theirs)
    expected = real(output(theirs, inputs), inputs)
    for synthesizer in ("random+vanilla", "dense+vanilla"):
        ours = convert(theirs, synthesizer)
        assert ours.config.synthesizer == synthesizer
        check(real(output(ours, inputs), inputs), expected)
        # The source has weights of its own.
        for parameter in ours.parameters():
            parameter.data.zero_()
    assert all(torch.equal(tensor, before[key]) for key, tensor in theirs.state_dict().items())


@pytest.mark.parametrize("name", GENERATING)
def test_generation_gives_the_same_tokens(name: str, sources: Sources) -> None:
    theirs = sources(name)
    ours = convert(theirs)
    assert ours.generation_config.to_dict() == theirs.generation_config.to_dict()
    inputs = batch(theirs, left=not theirs.config.is_encoder_decoder)
    inputs.pop("decoder_input_ids", None)
    arguments: Any = {"max_new_tokens": 6, "min_new_tokens": 4, "no_repeat_ngram_size": 1, "pad_token_id": 0}
    for beams in (1, 3):
        expected = theirs.generate(**inputs, **arguments, num_beams=beams)
        assert torch.equal(ours.generate(**inputs, **arguments, num_beams=beams), expected)
        assert torch.equal(generate(ours, **inputs, **arguments, num_beams=beams), expected)
    assert len(set(expected[:, -6:].flatten().tolist())) > 3


def test_groups_of_heads_keep_shared_values_together(sources: Sources) -> None:
    theirs = sources("qwen3")
    inputs = batch(theirs, left=True)
    ours = convert(theirs, "random:3/vanilla:3")
    assert ours.config.layer_types == ["synthesizer_keys_1"] * 2
    cache = ours(**inputs).past_key_values
    assert [(x.keys.shape, x.values.shape) for x in cache.layers] == [((3, 1, 9, 10), (3, 2, 9, 10))] * 2
    generated = ours.generate(**inputs, max_new_tokens=5, num_beams=2, pad_token_id=0)
    assert torch.equal(generate(ours, **inputs, max_new_tokens=5, num_beams=2, pad_token_id=0), generated)
    vanilla = convert(theirs)
    # The last heads first, and those that share a value in another order.
    other = synthesize(vanilla, "vanilla", {"decoder": [[4, 3, 5, 0, 2, 1]] * 2})
    check(output(other, inputs), output(vanilla, inputs))
    with pytest.raises(ValueError, match="multiples of 3"):
        convert(theirs, "random:2/vanilla:4")
    with pytest.raises(ValueError, match="'lightweight_conv' with num_key_value_heads"):
        convert(theirs, "lightweight_conv")


@pytest.mark.parametrize("name", ["t5", "marian", "gpt2", "qwen3", "bert-tagger", "roberta-classifier"])
def test_the_loss_and_its_gradient_are_those_of_the_source(name: str, sources: Sources) -> None:
    theirs = copy.deepcopy(sources(name)).train()
    ours, inputs = convert(theirs), batch(theirs)
    labels = inputs["input_ids"] % 5 if "-" in name else inputs["input_ids"]
    labels = labels[:, 0] if "classifier" in name else labels.masked_fill(inputs["attention_mask"] == 0, -100)
    labels = inputs.pop("decoder_input_ids", labels)
    losses = [model(**inputs, labels=labels).loss for model in (theirs, ours)]
    check(losses[1], losses[0])
    gradients = []
    for model, loss in zip((theirs, ours), losses, strict=True):
        loss.backward()
        gradients.append(model.get_input_embeddings().weight.grad)
    # Theirs have no gradient for padding, and ours none for padded tokens.
    check(gradients[1][3:], gradients[0][3:])
