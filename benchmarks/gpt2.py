"""The command `synthesizer`, with Hugging Face's GPT-2 as the model of language modeling: a peer of our `vanilla`.

    python benchmarks/gpt2.py compare language-modeling --synthesizers vanilla --data FOLDER --output RUNS

Only the model differs. GPT-2 has the dimensions of the preset and ReLU, and learns its positions: ours has as many
parameters with `--set position_embedding_type=learned`. The commands are train, evaluate, generate and compare.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.modeling_outputs import CausalLMOutput

from synthesizer_lab.cli import main
from synthesizer_lab.tasks.language_modeling import LanguageModeling
from synthetic_attention import SynthesizerConfig
from synthetic_attention.models.loss import IGNORED, head_token_losses, linear_cross_entropy


class Gpt2(GPT2LMHeadModel):
    """GPT-2 with our training loss, which is smoothed and divided by the number of labels of the update.

    Raises:
        ValueError: the configuration is for another attention than GPT-2's.
    """

    accepts_loss_kwargs = True

    def __init__(self, config: GPT2Config | SynthesizerConfig) -> None:
        super().__init__(gpt2_config(config) if isinstance(config, SynthesizerConfig) else config)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int = 1,
        smoothing: float = 0.0,
        **options: Any,
    ) -> Any:
        """All inputs are (B, T); a token predicts the next label. Without labels as in GPT-2, for generation."""
        if labels is None:
            return super().forward(input_ids, attention_mask=attention_mask, **options)
        hidden = self.transformer(input_ids, attention_mask=attention_mask, use_cache=False).last_hidden_state
        targets = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
        loss = linear_cross_entropy(hidden, self.lm_head.weight, targets, smoothing)
        return CausalLMOutput(loss=loss / num_items_in_batch)

    @torch.no_grad()
    def token_losses(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(B, T): −log p of each token, 0 for the first."""
        hidden = self.transformer(input_ids, attention_mask=attention_mask, use_cache=False).last_hidden_state
        return F.pad(head_token_losses(self.lm_head, hidden[:, :-1], input_ids[:, 1:]), (1, 0))


def gpt2_config(config: SynthesizerConfig) -> GPT2Config:
    """A GPT-2 configuration with the dimensions and dropout of `config`."""
    if config.synthesizer != "vanilla":
        raise ValueError(f"got synthesizer {config.synthesizer!r}; expected 'vanilla', the attention of GPT-2")
    same = ["vocab_size", "max_position_embeddings", "layer_norm_epsilon", "tie_word_embeddings"]
    same += ["pad_token_id", "bos_token_id", "eos_token_id"]
    return GPT2Config(
        n_embd=config.d_model,
        n_layer=config.num_layers,
        n_head=config.num_heads,
        n_inner=config.d_ff,
        activation_function="relu",
        resid_pdrop=config.dropout_rate,
        embd_pdrop=config.dropout_rate,
        attn_pdrop=config.attention_dropout_rate,
        **{name: getattr(config, name) for name in same},
    )


if __name__ == "__main__":
    LanguageModeling.model_class = Gpt2
    main()
