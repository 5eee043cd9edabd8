"""What log.jsonl has of the mixtures of a model."""

import pytest

from synthesizer_lab.training.trainer import mixture_weights
from synthetic_attention import SynthesizerConfig, SynthesizerForCausalLM

LAYER = "model.decoder.layers.0.self_attn.function"


@pytest.mark.parametrize(
    ("synthesizer", "gate", "expected"),
    [
        ("random", "softmax", {}),
        ("random+vanilla", "sum", {}),
        ("random+vanilla", "softmax", {LAYER: [[0.5, 0.5], [0.5, 0.5]]}),
        ("random+vanilla", "sigmoid", {LAYER: [[0.5], [0.5]]}),
        (
            "random+dense+vanilla:1/random+vanilla:1",
            "softmax",
            {f"{LAYER}.functions.0": [[0.333333]] * 3, f"{LAYER}.functions.1": [[0.5]] * 2},
        ),
    ],
)
def test_mixture_weights(synthesizer: str, gate: str, expected: dict[str, list[list[float]]]) -> None:
    sizes = {"vocab_size": 20, "d_model": 8, "num_heads": 2, "d_ff": 8, "num_layers": 1, "max_position_embeddings": 6}
    options = {"mixture": {"gate": gate}}
    config = SynthesizerConfig(**sizes, synthesizer=synthesizer, synthesizer_options=options, is_encoder_decoder=False)
    assert mixture_weights(SynthesizerForCausalLM(config)) == expected
