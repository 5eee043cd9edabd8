"""The command `synthesizer`, with a decoder of Hugging Face as the model of language modeling: a peer of our `vanilla`.

    python benchmarks/decoders.py gpt2 compare language-modeling --synthesizers vanilla --data FOLDER --output RUNS
    python benchmarks/decoders.py llama compare language-modeling --preset llama-tiny --set dropout_rate=0 …

Only the model differs. GPT-2 has the dimensions of the preset and ReLU, and learns its positions: ours has as many
parameters with `--set position_embedding_type=learned`. Llama has no dropout. The commands are train, evaluate,
generate and compare.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from synthesizer_lab.cli import main
from synthesizer_lab.tasks.language_modeling import LanguageModeling
from synthetic_attention import SynthesizerConfig
from synthetic_attention.models.loss import IGNORED, linear_cross_entropy


class _Peer(PreTrainedModel):
    """A decoder with our training loss, which is smoothed and divided by the number of labels of the update.

    Raises:
        ValueError: the configuration is for other attention than dot products.
    """

    accepts_loss_kwargs = True
    peer_config: Callable[[SynthesizerConfig], PretrainedConfig]
    lm_head: nn.Linear

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__(self.peer_config(config) if isinstance(config, SynthesizerConfig) else config)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int = 1,
        smoothing: float = 0.0,
        **options: Any,
    ) -> Any:
        """All inputs are (B, T); a token predicts the next label. Without labels as in the parent, for generation."""
        if labels is None:
            return cast(Any, super()).forward(input_ids, attention_mask=attention_mask, **options)
        hidden = self.base_model(input_ids, attention_mask=attention_mask, use_cache=False).last_hidden_state
        targets = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
        loss = linear_cross_entropy(hidden, self.lm_head.weight, targets, smoothing)
        return CausalLMOutput(loss=loss / num_items_in_batch)


def _common(config: SynthesizerConfig) -> dict[str, Any]:
    if config.synthesizer != "vanilla":
        raise ValueError(f"got synthesizer {config.synthesizer!r}; expected 'vanilla', the attention of this model")
    names = "vocab_size max_position_embeddings tie_word_embeddings pad_token_id bos_token_id eos_token_id"
    return {name: getattr(config, name) for name in names.split()}


class Gpt2(_Peer, GPT2LMHeadModel):
    """GPT-2 with the dimensions and dropout of a preset."""

    @staticmethod
    def peer_config(config: SynthesizerConfig) -> GPT2Config:
        return GPT2Config(
            n_embd=config.d_model,
            n_layer=config.num_layers,
            n_head=config.num_heads,
            n_inner=config.d_ff,
            activation_function="relu",
            layer_norm_epsilon=config.layer_norm_epsilon,
            resid_pdrop=config.dropout_rate,
            embd_pdrop=config.dropout_rate,
            attn_pdrop=config.attention_dropout_rate,
            **_common(config),
        )


class Llama(_Peer, LlamaForCausalLM):
    """Llama with the dimensions of a preset."""

    @staticmethod
    def peer_config(config: SynthesizerConfig) -> LlamaConfig:
        if config.dropout_rate or config.attention_dropout_rate:
            raise ValueError("got dropout; expected dropout_rate=0 and attention_dropout_rate=0, as in Llama")
        return LlamaConfig(
            hidden_size=config.d_model,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            intermediate_size=config.d_ff,
            rms_norm_eps=config.layer_norm_epsilon,
            **_common(config),
        )


# The processes of --jobs too.
if __name__ in ("__main__", "__mp_main__"):
    LanguageModeling.model_class = {"gpt2": Gpt2, "llama": Llama}[sys.argv[1]]
if __name__ == "__main__":
    main(sys.argv[2:])
