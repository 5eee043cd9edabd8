"""benchmarks/decoders.py: GPT-2 and Llama as the model of language modeling."""

from typing import Any

import pytest
import torch
from decoders import Gpt2, Llama
from transformers import GPT2LMHeadModel, LlamaForCausalLM

from synthetic_attention import SynthesizerConfig, SynthesizerForCausalLM

GPT2 = {"position_embedding_type": "learned"}
LLAMA = {"position_embedding_type": "rotary", "norm_type": "rms_norm", "feed_forward_proj": "gated-silu"}
LLAMA |= {"use_bias": False}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("peer", "kind", "options"), [(Gpt2, GPT2LMHeadModel, GPT2), (Llama, LlamaForCausalLM, LLAMA)])
def test_the_loss_is_the_peers_and_smoothed_as_ours(
    peer: Any, kind: Any, options: dict[str, Any], smoothing: float
) -> None:
    sizes = {"vocab_size": 53, "d_model": 24, "num_heads": 2, "d_ff": 31, "num_layers": 2}
    config = SynthesizerConfig(
        **sizes, **options, max_position_embeddings=19, synthesizer="vanilla", dropout_rate=0.0, eos_token_id=None
    )
    model = peer(config).eval()
    assert model.num_parameters() == SynthesizerForCausalLM(config).num_parameters()
    ids, mask = torch.randint(3, 53, (3, 7)), torch.ones(3, 7, dtype=torch.long)
    mask[1, 5:] = 0
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, 0] = -100
    theirs = kind(peer.peer_config(config))
    theirs.load_state_dict(model.state_dict())
    logits = theirs.eval()(ids, attention_mask=mask).logits[:, :-1]
    expected = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels[:, 1:].flatten(), label_smoothing=smoothing, reduction="sum"
    )
    torch.testing.assert_close(model(ids, mask, labels, smoothing=smoothing).loss, expected)
