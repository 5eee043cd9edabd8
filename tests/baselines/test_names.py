"""Baselines by name: in configurations, on the command line, trained and looked into."""

from pathlib import Path

import pytest
import torch

from synthetic_attention import SynthesizerConfig, SynthesizerForCausalLM, SynthesizerForConditionalGeneration
from synthetic_attention.baselines import LightweightConvolution, Linformer
from synthetic_attention.synthesizers import validate

SIZES = {"vocab_size": 11, "d_model": 12, "num_heads": 3, "d_ff": 5, "num_layers": 2, "max_position_embeddings": 10}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("linformer+random", None, r"'linformer'.*'linformer\+random'"),
        ("linformer", {"linformer": {"ranks": 3}}, "'ranks' for 'linformer'.*rank"),
        ("vanilla", {"linformer": {"rank": "3"}}, "rank='3'"),
        ("dynamic_conv", {"nothing": {}}, "'nothing'.*dense, dynamic_conv"),
    ],
)
def test_what_cannot_be(name: str, options: dict[str, dict[str, object]] | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        validate(name, options)
    with pytest.raises(ValueError, match=message):
        SynthesizerConfig(**SIZES, synthesizer=name, synthesizer_options=options)


def test_linformer_sees_what_comes_later() -> None:
    config = SynthesizerConfig(**SIZES, synthesizer="linformer")
    for kind in (SynthesizerForCausalLM, SynthesizerForConditionalGeneration):
        with pytest.raises(ValueError, match="'linformer'"):
            kind(config.with_one_stack(is_decoder=True) if kind is SynthesizerForCausalLM else config)


def test_a_model_of_several(tmp_path: Path) -> None:
    config = SynthesizerConfig(
        **SIZES,
        synthesizer={"encoder": [" linformer", "dynamic_conv"], "decoder": ["lightweight_conv", "random+vanilla"]},
        synthesizer_options={"linformer": {"rank": 3}, "lightweight_conv": {"kernel_size": [5, 7]}},
        # A bias of the logits is for those that have some.
        position_embedding_type="relative",
    )
    model = SynthesizerForConditionalGeneration(config).eval()
    encoder, decoder = (stack.layers[0].self_attn for stack in (model.model.encoder, model.model.decoder))
    assert isinstance(encoder, Linformer)
    assert isinstance(decoder, LightweightConvolution)
    assert (encoder.rank, decoder.kernel_size) == (3, 5)
    assert decoder.synthesizer == "lightweight_conv"
    ids = torch.randint(3, 11, (2, 6))
    labels = torch.randint(3, 11, (2, 4))
    out = model(ids, labels=labels, output_attentions=True)
    assert [weights.shape for weights in out.encoder_attentions] == [(2, 3, 6, 6)] * 2
    model.save_pretrained(tmp_path)
    again = SynthesizerForConditionalGeneration.from_pretrained(tmp_path)
    # Weights that are asked for are computed as a whole matrix, so digits may differ.
    torch.testing.assert_close(again(ids, labels=labels).logits, out.logits)
