"""What an inspection reads from a model: attention weights, α, R, token labels, and the initial model."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, set_seed

from synthesizer_lab.data.tokenizer import encode, train_tokenizer
from synthesizer_lab.errors import UserError
from synthesizer_lab.inspect.collect import (
    attention_layers,
    attention_maps,
    attention_weights,
    example_inputs,
    initial_model,
    readable_tokens,
    shares_start,
    text_inputs,
    with_output,
)
from synthetic_attention import SynthesizerConfig, SynthesizerForCausalLM, SynthesizerForConditionalGeneration

NAMES = [
    *("vanilla", "dense", "random", "fixed_random", "factorized_dense", "factorized_random"),
    *("random+vanilla", "dense+vanilla", "random+dense", "lightweight_conv", "local_dense"),
]
IDS = torch.tensor([[5, 6, 7, 8, 2]])


def _config(synthesizer: object, layers: int, **fields: object) -> SynthesizerConfig:
    sizes = {"vocab_size": 300, "d_model": 12, "num_heads": 3, "d_ff": 8, "max_position_embeddings": 13}
    return SynthesizerConfig(**{**sizes, "num_layers": layers, "synthesizer": synthesizer, **fields})


def _check(weights: np.ndarray, rows: int, columns: int, is_causal: bool) -> None:
    assert weights.shape == (3, rows, columns)
    assert is_causal == bool(np.allclose(weights[:, np.triu(np.ones((rows, columns)), 1).astype(bool)], 0))


def test_every_variant_of_an_encoder_decoder_shows_its_weights() -> None:
    model = SynthesizerForConditionalGeneration(_config(NAMES, len(NAMES))).eval()
    found = attention_weights(model, {"input_ids": IDS, "decoder_input_ids": IDS[:, :4]})
    assert {stack: len(of_layers) for stack, of_layers in found.items()} == dict.fromkeys(
        ("encoder", "decoder", "cross"), len(NAMES)
    )
    for index, name in enumerate(NAMES):
        _check(found["encoder"][index], 5, 5, False)
        _check(found["decoder"][index], 4, 4, True)
        _check(found["cross"][index], 4, 5, False)
        if name not in ("lightweight_conv", "local_dense"):
            assert np.allclose(found["encoder"][index].sum(axis=-1), 1, atol=1e-5)


def test_a_causal_model_has_one_stack() -> None:
    model = SynthesizerForCausalLM(_config(["random", "dense+vanilla"], 2)).eval()
    found = attention_weights(model, {"input_ids": IDS, "attention_mask": torch.ones_like(IDS), "labels": IDS})
    assert list(found) == ["decoder"]
    for weights in found["decoder"]:
        _check(weights, 5, 5, True)
    layers = [(layer.stack, layer.number, layer.is_causal) for layer in attention_layers(model)]
    assert layers == [("decoder", 1, True), ("decoder", 2, True)]


def test_functions_alphas_and_scores_of_each_layer() -> None:
    names = {"encoder": ["random", "dense+factorized_random"], "decoder": ["vanilla", "random+random"]}
    model = SynthesizerForConditionalGeneration(_config(names, 2, position_embedding_type="relative"))
    layers = attention_layers(model)
    assert [(layer.stack, layer.number) for layer in layers] == [
        *(("encoder", 1), ("encoder", 2)),
        *(("decoder", 1), ("decoder", 2)),
    ]
    found = [list(layer.functions) for layer in layers]
    assert found == [["random"], ["dense", "factorized_random"], ["vanilla"], ["random", "random 2"]]
    assert [list(layer.alphas()) for layer in layers] == [[], found[1], [], found[3]]
    assert layers[1].alphas()["dense"].tolist() == [0.5] * 3
    bias = "relative_position_bias"
    assert [list(layer.scores(4)) for layer in layers] == [["random", bias], ["factorized_random"], [bias], found[3]]
    for layer in (layers[0], layers[2]):
        weight = model.state_dict()[f"model.{layer.stack}.relative_attention_bias.weight"]
        # The first bucket is distance 0, the second the key before the query.
        assert np.array_equal(layer.scores(4)[bias][:, 2, [2, 1]], weight[:2].T.numpy())
    table = model.state_dict()["model.encoder.layers.0.self_attn.function.table"]
    assert np.array_equal(layers[0].scores(4)["random"], table[:, :4, :4].numpy())


def test_functions_of_groups_have_their_heads() -> None:
    model = SynthesizerForCausalLM(_config("random+random:2/fixed_random:1", 1))
    (layer,) = attention_layers(model)
    names = ["random of heads 1-2", "random 2 of heads 1-2", "fixed_random of head 3"]
    assert {name: layer.first_head(name) for name in layer.functions} == dict(zip(names, (0, 0, 2), strict=True))
    assert {name: alpha.tolist() for name, alpha in layer.alphas().items()} == {key: [0.5, 0.5] for key in names[:2]}
    assert {name: scores.shape for name, scores in layer.scores(4).items()} == dict(
        zip(names, [(2, 4, 4), (2, 4, 4), (1, 4, 4)], strict=True)
    )


@pytest.mark.parametrize("synthesizer", ["fixed_random", "factorized_random+vanilla"])
def test_the_initial_model_is_built_again_from_the_seed(synthesizer: str) -> None:
    set_seed(7)
    model = SynthesizerForConditionalGeneration(_config(synthesizer, 2))
    start = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(10):
        optimizer.zero_grad()
        model(input_ids=IDS, labels=IDS).loss.backward()
        optimizer.step()
    before = initial_model(model, 7)
    for name, value in before.state_dict().items():
        assert torch.equal(value, start[name]), name
    assert shares_start(before, model)
    assert not shares_start(initial_model(model, 8), model)


def test_texts_become_inputs_of_the_model() -> None:
    tokenizer = train_tokenizer(["a b"], 300, 8)
    model = SynthesizerForCausalLM(_config("dense", 1)).eval()
    (inputs,) = text_inputs(model, tokenizer, ["a b"])
    assert inputs["input_ids"][0, 0] == model.config.bos_token_id
    with pytest.raises(UserError, match=r"text 2 of 2.*13"):
        text_inputs(model, tokenizer, ["a", "a " * 99])


def test_the_output_is_what_the_model_writes() -> None:
    tokenizer = train_tokenizer(["one two"], 300, 8)
    model = SynthesizerForConditionalGeneration(_config("dense", 1)).eval()
    (inputs,) = text_inputs(model, tokenizer, ["one $5"])
    shown = with_output(model, {**inputs, "labels": torch.tensor([[1, 2]])})
    assert torch.equal(shown["decoder_input_ids"][:, 1:], shown["labels"][:, :-1])
    text, maps = attention_maps(model, tokenizer, shown)
    assert text.startswith("one $5 → ")
    assert "".join(maps["encoder"].rows[1]) == "one␣$5</s>"
    assert maps["encoder"].rows == maps["encoder"].columns == maps["cross"].columns
    # The decoder reads from the start token on and writes the token that comes next.
    read, written = maps["decoder"].rows[1], maps["cross"].rows[1]
    assert read == ["<s>", *written[:-1]]
    assert [maps[stack].is_causal for stack in maps] == [False, True, False]


class _Packed:
    """A task with two sentences in a row."""

    def collate(self, examples: Any, pad_token_id: int) -> dict[str, torch.Tensor]:
        row = torch.tensor([[1, 5, 6, 1, 7, 0]])
        return {"input_ids": row, "segment_ids": torch.tensor([[4, 4, 4, 2, 2, 0]])}


def test_several_sentences_in_a_row_are_separated() -> None:
    model = SynthesizerForCausalLM(_config("dense", 1)).eval()
    inputs = example_inputs(_Packed(), model, None)  # type: ignore[arg-type]
    assert [one["input_ids"].tolist() for one in inputs] == [[[1, 5, 6]], [[1, 7]]]
    assert attention_weights(model, inputs[1])["decoder"][0].shape == (3, 2, 2)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    lines = ["Die Mädchen grüßen schöne Straßen und hören $5 Lärm", "Donaudampfschifffahrtsgesellschaft"] * 9
    return train_tokenizer(lines, vocab_size=500, max_length=64)


def test_labels_are_readable(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    def labels(text: str) -> list[str]:
        return readable_tokens(tokenizer, encode(tokenizer, [text])[0].tolist())

    assert "".join(labels("schöne Mädchen grüßen $5")) == "schöne␣Mädchen␣grüßen␣$5</s>"
    assert labels("語") == ["�", "�", "�", "</s>"]
    assert labels("Donaudampfschifffahrtsgesellschaft")[0] == "Donaudampfsch…"
    assert labels("\n\t") == ["\\n", "\\t", "</s>"]
    assert readable_tokens(tokenizer, [0, 1, 2, 3]) == ["<pad>", "<s>", "</s>", "<unk>"]
    assert "".join(labels("</s>")) == "</s></s>"


def test_a_vocabulary_of_another_kind_keeps_its_marks() -> None:
    words = Tokenizer(models.WordLevel({"▁für": 0, "ĠĠ": 1, "[UNK]": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")
    assert readable_tokens(tokenizer, [0, 1, 2]) == ["▁für", "ĠĠ", "[UNK]"]
