"""What an inspection reads from a model: attention weights, α, R and token labels."""

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from synthesizer_lab.attention.layers import attention_layers
from synthesizer_lab.data.tokenizer import encode, train_tokenizer
from synthesizer_lab.errors import UserError
from synthesizer_lab.inspect import collect
from synthesizer_lab.inspect.collect import attention_weights, parts_of, read_scores, readable_tokens
from synthetic_attention import SynthesizerConfig, SynthesizerForConditionalGeneration

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
    for index, name in enumerate(NAMES):
        _check(found["encoder"][index], 5, 5, False)
        _check(found["decoder"][index], 4, 4, True)
        _check(found["cross"][index], 4, 5, False)
        if name not in ("lightweight_conv", "local_dense"):
            assert np.allclose(found["encoder"][index].sum(axis=-1), 1, atol=1e-5)


def test_functions_alphas_and_scores_of_each_layer() -> None:
    names = {"encoder": ["random", "dense+factorized_random"], "decoder": ["vanilla", "random+random"]}
    model = SynthesizerForConditionalGeneration(_config(names, 2, position_embedding_type="relative"))
    layers = attention_layers(model)
    assert [(layer.stack, layer.number) for layer in layers] == [(stack, n) for stack in names for n in (1, 2)]
    parts, bias = [parts_of(layer) for layer in layers], "relative_position_bias"
    found = [[part.name for part in each] for each in parts]
    assert found == [["random"], ["dense", "factorized_random"], ["vanilla"], ["random", "random 2"]]
    scores = [read_scores(layer, 4) for layer in layers]
    assert [list(each) for each in scores] == [["random", bias], ["factorized_random"], [bias], found[3]]
    for layer, each in ((layers[0], scores[0]), (layers[2], scores[2])):
        weight = model.state_dict()[f"model.{layer.stack}.relative_attention_bias.weight"]
        # The first bucket is distance 0, the second the key before the query.
        assert np.array_equal(each[bias][1][:, 2, [2, 1]], weight[:2].T.numpy())
    table = model.state_dict()["model.encoder.layers.0.self_attn.function.table"]
    assert np.array_equal(scores[0]["random"][1], table[:, :4, :4].numpy())


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    lines = ["Die Mädchen grüßen schöne Straßen und hören $5 Lärm", "Donaudampfschifffahrtsgesellschaft"] * 9
    return train_tokenizer(lines, vocab_size=500, max_length=64)


def test_a_text_for_a_model_of_pairs_and_an_example_without_labels(tokenizer: PreTrainedTokenizerFast) -> None:
    model = SynthesizerForConditionalGeneration(_config("vanilla", 1, type_vocab_size=2))
    with pytest.raises(UserError, match="--data"):
        collect.text_inputs(model, tokenizer, ["one"])
    found = collect.measure_attention(model, [{"input_ids": IDS, "labels": torch.full_like(IDS, -100)}])
    assert found["decoder", 1].lengths == [collect.with_output(model, {"input_ids": IDS})["labels"].shape[1]]


def test_labels_are_readable(tokenizer: PreTrainedTokenizerFast) -> None:
    def labels(text: str) -> list[str]:
        return readable_tokens(tokenizer, encode(tokenizer, [text])[0].tolist())

    assert "".join(labels("schöne Mädchen grüßen $5")) == "schöne␣Mädchen␣grüßen␣$5</s>"
    assert labels("語") == ["�", "�", "�", "</s>"]
    assert labels("Donaudampfschifffahrtsgesellschaft")[0] == "Donaudampfsch…"
    assert labels("\n\t") == ["\\n", "\\t", "</s>"]
    assert readable_tokens(tokenizer, [0, 1, 2, 3]) == ["<pad>", "<s>", "</s>", "<unk>"]
    assert "".join(labels("</s>")) == "</s></s>"
