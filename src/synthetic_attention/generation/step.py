"""The decoder of a model, prepared for a decode loop: one token of each row in, the scores of the next one out.

Everything that the steps share is made once: rows of softmax(R) and of positions ahead for many steps, keys and values
of cross-attention, and for each module the operator that computes it. So a step is a short list of tensor operations.

Shape legend: B sources, M beams, N = B · M rows, P tokens of a prompt, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..attention import SynthesizerAttention
from ..kernels.matmul import is_plain, is_unchanged
from ..layout import read_mask
from ..models import SynthesizerForCausalLM, SynthesizerForConditionalGeneration, SynthesizerModel
from ..models.blocks import MLP, CrossAttention, SynthesizerBlock
from ..models.modeling import SynthesizerStack
from ..synthesizers import SynthesizingFunction
from .attention import SelfAttentionStep, Slots, prepare, prepare_sum
from .cross_attention import CrossAttentionStep, Source

# Rows of softmax(R), of positions and of biases are made for so many steps at a time, and slots at first.
_AHEAD = 32
# With more, transformers' cache, which copies the keys of each beam, is faster.
_MOST_BEAMS = 24


def can_step(model: Any, beams: int = 1) -> bool:
    """Whether `Decoder` computes what a call of the model does.

    Projections and norms may be replaced; the containers around them may not. Not with hooks, which see the shapes of
    calls, nor with baselines. Not in training (dropout), under autocast, nor in float16 on a CPU, where products of
    large numbers need care. Not with many beams of heads with keys: the time of a step grows with their square.
    """
    if not is_unchanged(model, SynthesizerForCausalLM, SynthesizerForConditionalGeneration):
        return False
    if not is_unchanged(model.model, SynthesizerModel) or (beams > _MOST_BEAMS and any(model.config.key_heads)):
        return False
    stack, weight = model.model.decoder, model.model.embed_tokens.weight
    device, is_float16 = weight.device.type, weight.dtype == torch.float16
    if model.training or torch.is_autocast_enabled(device) or (is_float16 and device == "cpu"):
        return False
    for module in model.modules():
        if module._forward_hooks or module._forward_pre_hooks:
            return False
        # Adapters of a function's parameters apply inside of a call only.
        if isinstance(module._modules.get("base_layer"), SynthesizingFunction):
            return False
    attentions = [block.self_attn for block in stack.layers]
    others = [part for block in stack.layers for part in (block, block.mlp, block.cross_attn) if part is not None]
    kinds = (SynthesizerStack, SynthesizerBlock, SynthesizerAttention, MLP, CrossAttention)
    if any(part.training or not is_unchanged(part, *kinds) for part in (stack, *attentions, *others)):
        return False
    return all(map(SelfAttentionStep.can_step, attentions))


class BlockStep:
    """A step of a `SynthesizerBlock`."""

    def __init__(self, block: Any, source: Source | None, slots: Slots) -> None:
        rows = slots.sources * slots.beams
        self.attention = SelfAttentionStep(block.self_attn, slots)
        self.cross = None if source is None else CrossAttentionStep(block.cross_attn, source, slots)
        self.pre_norm, mlp = block.pre_norm, block.mlp
        self.norm, self.mlp_norm = prepare(block.self_attn_norm, rows), prepare(block.mlp_norm, rows)
        self.cross_norm = prepare(block.cross_attn_norm, rows)
        self.up, self.add_down = prepare(mlp.up_proj, rows), prepare_sum(mlp.down_proj, rows)
        self.activation = prepare(mlp.activation, rows)
        self.gate = None if mlp.gate_proj is None else prepare(mlp.gate_proj, rows)

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """(N, d_model) to (N, d_model)."""
        if self.pre_norm:
            x = self.attention(x, self.norm(x), bias)
            if self.cross is not None:
                x = self.cross(x, self.cross_norm(x))
            return self._add_feed_forward(x, self.mlp_norm(x))
        x = self.norm(self.attention(x, x, bias))
        if self.cross is not None:
            x = self.cross_norm(self.cross(x, x))
        return self.mlp_norm(self._add_feed_forward(x, x))

    def _add_feed_forward(self, total: Tensor, x: Tensor) -> Tensor:
        hidden = self.activation(self.up(x)) if self.gate is None else self.activation(self.gate(x)) * self.up(x)
        return self.add_down(total, hidden)


class Decoder:
    """The decoder of a model that `can_step`, with the state of one call of the decode loop.

    Args:
        prompts: (B, P), the tokens before the first new one, P ≥ 1.
        mask: (B, P), 1/True at real tokens, padded on the left, or with an encoder that of the source, (B, S); None
            where all are real.
        states: (B, S, d_model), the encoder's output; None for a causal model.
        beams: M, rows that begin with the same prompt.
        max_length: the longest sequence that will be generated, prompt included.

    Raises:
        ValueError: a mask that does not fit.
    """

    def __init__(
        self, model: Any, prompts: Tensor, mask: Tensor | None, states: Tensor | None, *, beams: int, max_length: int
    ) -> None:
        self.stack, self.is_causal = model.model.decoder, not model.config.is_encoder_decoder
        self.like, self.max_length = model.model.embed_tokens.weight, max_length
        sources, past = prompts.shape[0], prompts.shape[1] - 1
        rows, tokens = sources * beams, prompts[:, :past]
        source: Source | None = None
        inputs: dict[str, Any]
        if states is not None:
            source = Source(states, mask, model.config.num_heads)
            inputs = {"attention_mask": mask, "decoder_input_ids": tokens, "encoder_outputs": (states,)}
            mask = None
        else:
            mask = None if mask is None else read_mask(mask, *prompts.shape)[0]
            mask = None if mask is None else mask[:, :past]
            inputs = {"input_ids": tokens, "attention_mask": mask}
        self.slots = Slots(sources, beams, mask, self.like)
        self.blocks = [BlockStep(block, source, self.slots) for block in self.stack.layers]
        self.buffers = [each for block in self.blocks for each in (*block.attention.values, *block.attention.keys)]
        self.head = prepare(model.lm_head, rows)
        # The searches change the scores, and another module may keep what it returns.
        self.copies_scores = not is_plain(model.lm_head)
        base, norms = model.model, (self.stack.embedding_norm, self.stack.norm)
        self.embed = prepare(base.embed_tokens, rows) if base.token_types is None else lambda x: base._embed(x, None)
        self.embedding_norm, self.norm = (None if norm is None else prepare(norm, rows) for norm in norms)
        self.position_rows: Tensor | None = None
        self.capacity = self.rows_end = 0
        self._reserve(past + _AHEAD)
        if past:
            # Run the model on prompts, without their last token, and store what it cached.
            cached = model.model(**inputs, use_cache=True, return_dict=True).past_key_values
            cached = cached if source is None else cached.self_attention_cache
            for block, layer in zip(self.blocks, cached.layers, strict=True):
                block.attention.fill(layer.keys, layer.values)
        self.slots.length = self.rows_end = past

    def _reserve(self, capacity: int) -> None:
        self.capacity = min(capacity, self.max_length)
        self.slots.reserve(self.capacity)
        for buffer in self.buffers:
            buffer.reserve(self.capacity)

    def _make_rows(self) -> None:
        """Make ahead what depends on positions alone. Under padding each row has positions of its own."""
        first, longest = self.slots.length, self.max_length
        if self.slots.mask is not None:
            self.rows_end = longest
            return
        last = self.rows_end = min(first + _AHEAD, longest, self.stack.max_length or longest)
        rows = torch.arange(first, last, device=self.like.device)
        bias: Tensor | None = None
        if self.stack.relative_attention_bias is not None:
            bias = self.stack.relative_attention_bias(rows, torch.arange(last, device=self.like.device))
            bias = bias.to(self.like.dtype)
        for block in self.blocks:
            block.attention.make_rows(first, last, bias)
        if self.stack.embed_positions is not None:
            self.position_rows = self.stack.embed_positions(rows).to(self.like.dtype)
        self.first_row = first

    def _embed(self, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        """The input of the first layer (N, d_model), and under padding the bias (B, H, 1, length)."""
        stack, slots, bias, row = self.stack, self.slots, None, None
        x = self.embed(tokens)
        if slots.mask is not None:
            positions = slots.positions
            assert positions.row_index is not None
            assert positions.key_index is not None
            if stack.relative_attention_bias is not None:
                bias = stack.relative_attention_bias(positions.row_index[:, :1], positions.key_index).to(x.dtype)
            if stack.embed_positions is not None:
                row = stack.embed_positions(positions.row_index.flatten()).to(x.dtype)
        elif self.position_rows is not None:
            row = self.position_rows[slots.length - 1 - self.first_row]
        if row is not None:
            x = torch.add(row, x, alpha=stack.scale)
        elif stack.scale != 1.0:
            x = x * stack.scale
        return x if self.embedding_norm is None else self.embedding_norm(x), bias

    def step(self, tokens: Tensor) -> Tensor:
        """The scores (N, V) of the next token, in float32, after one token (N,) more; ValueError if too long."""
        slots = self.slots
        if slots.length == self.capacity:
            self._reserve(2 * self.capacity)
        # As in the model, which also checks that the token that a causal model predicts has room.
        self.stack.check_length(slots.length + 1 + self.is_causal)
        if slots.length == self.rows_end:
            self._make_rows()
        slots.advance()
        x, bias = self._embed(tokens)
        for block in self.blocks:
            x = block(x, bias)
        return self.head(x if self.norm is None else self.norm(x)).to(torch.float32, copy=self.copies_scores)

    def keep(self, sources: Tensor) -> None:
        """Drop all sources but these."""
        crosses = [block.cross for block in self.blocks if block.cross is not None]
        parts: list[Any] = [self.slots, *self.buffers, *crosses]
        for part in parts:
            part.keep(sources)
