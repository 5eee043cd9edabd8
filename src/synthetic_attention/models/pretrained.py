"""The base class of all models: initialisation, resizing, and what transformers asks of a model class."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Cache, PreTrainedModel

from .configuration import SynthesizerConfig


def init_linears(module: nn.Module, factor: float) -> None:
    """Glorot's uniform distribution times `factor` for every linear layer in `module`; zeros for biases."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            bound = factor * (6 / sum(layer.weight.shape)) ** 0.5
            nn.init.uniform_(layer.weight, -bound, bound)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


class SynthesizerPreTrainedModel(PreTrainedModel):
    """Base class of all Synthesizer models: configuration class, initialisation, features that transformers uses."""

    config_class = SynthesizerConfig
    config: SynthesizerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["SynthesizerBlock"]  # noqa: RUF012
    # "sdpa" and "eager" mean the same: the logits' form chooses the kernel.
    _supports_sdpa = True
    _can_compile_fullgraph = True
    # Losses divide by `num_items_in_batch`: gradient accumulation equals one large batch.
    accepts_loss_kwargs = True

    # Does nothing.
    register_for_auto_class = SynthesizerConfig.register_for_auto_class

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        # transformers guesses from the source code.
        return True

    def init_weights(self) -> None:
        """Tie the weights. Constructors have initialised all modules already."""
        self.tie_weights(recompute_mapping=False)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise a module that is missing in the checkpoint, or new (a larger embedding)."""
        # Parents come after their children and replace what is theirs, as SynthesizerAttention does.
        if module is getattr(self, "lm_head", None) or type(module) is nn.Embedding:
            nn.init.normal_(module.weight, std=self.config.embedding_std)
            if isinstance(bias := getattr(module, "bias", None), Tensor):
                nn.init.zeros_(bias)
        elif isinstance(module, nn.Linear):
            init_linears(module, self.config.initializer_factor)
        elif callable(reset := getattr(module, "reset_parameters", None)):
            reset()

    def resize_position_embeddings(self, new_num_position_embeddings: int) -> None:
        """Change `max_position_embeddings` in place, in all stacks and in the configuration.

        As `extend` of a layer. `factorized_dense` keeps its `a` and `linformer` its `rank`.

        Raises:
            ValueError: a number below 1.
        """
        options = copy.deepcopy(self.config.synthesizer_options or {})
        modules: list[Any] = [*self.modules()]
        for module in modules:
            if hasattr(module, "embed_positions"):
                module.extend(new_num_position_embeddings)
            for option in getattr(module, "length_options", ()):
                options.setdefault(module.name, {})[option] = getattr(module, option)
        self.config.max_position_embeddings = int(new_num_position_embeddings)
        self.config.synthesizer_options = options or None

    @staticmethod
    def create_masks_for_generate(
        *, attention_mask: Tensor | None = None, past_key_values: Cache, **unused: Any
    ) -> Tensor | None:
        """The mask that `generate()` prepares for a static cache: for all its slots, so that no step has another shape.

        None if no token is masked: the rows share their positions then, which makes shared logits fast.
        """
        if attention_mask is None or bool(attention_mask.all()):
            return None
        missing = past_key_values.get_max_length() - attention_mask.shape[1]
        return F.pad(attention_mask, (0, missing)) if missing > 0 else attention_mask
