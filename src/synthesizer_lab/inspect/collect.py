"""What an inspection reads from a model: attention weights on texts, α, R, biases, and the initial weights."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast, set_seed

from synthetic_attention.attention import SelfAttention, SynthesizerAttention
from synthetic_attention.layout import Positions
from synthetic_attention.models.modeling import SynthesizerBlock, SynthesizerStack
from synthetic_attention.models.positions import RelativePositionBias
from synthetic_attention.synthesizers import SynthesizingFunction

from ..data.tokenizer import decode, encode
from ..errors import UserError
from ..tasks.base import Task
from ..tasks.generation import output_limit
from .statistics import Array, WeightStatistics

CROSS = "cross"
_LONGEST_LABEL = 14
Inputs = dict[str, Tensor]


class AttentionLayer(NamedTuple):
    """The self-attention of one layer; `number` counts from 1 in its stack, "encoder" or "decoder"."""

    stack: str
    number: int
    module: SelfAttention
    is_causal: bool
    bias: RelativePositionBias | None

    @property
    def functions(self) -> dict[str, SynthesizingFunction]:
        """The functions of the layer by name, numbered if one comes twice; empty for a baseline."""
        return {name: function for _, named, _ in self._groups() for name, function in named.items()}

    def first_head(self, name: str) -> int:
        """The first head, from 0, of the group with a function."""
        return next((first for first, named, _ in self._groups() if name in named), 0)

    def alphas(self) -> dict[str, Array]:
        """α (H,) of each function, (1,) where all heads share it; empty without a mixture or for a plain sum.

        H are the heads of the function's group.
        """
        found: dict[str, Array] = {}
        for _, named, group in self._groups():
            if (weights := group.weights()) is not None:
                found |= dict(zip(named, _to_array(weights), strict=True))
        return found

    def mixtures(self) -> list[SynthesizingFunction]:
        """The mixtures with an α, in the order of `alphas`."""
        return [group for _, _, group in self._groups() if group.weights() is not None]

    def components(self) -> dict[str, tuple[SynthesizingFunction, int]]:
        """For each function the mixture that it is in, or itself, and its number there."""
        return {name: (group, index) for _, named, group in self._groups() for index, name in enumerate(named)}

    def _groups(self) -> Iterator[tuple[int, dict[str, SynthesizingFunction], SynthesizingFunction]]:
        """For each group of heads the first one, its functions by name (with the heads if not all), and the whole."""
        if not isinstance(self.module, SynthesizerAttention):
            return
        for heads, group in self.module.function.groups():
            named: dict[str, SynthesizingFunction] = {}
            for part in group.components:
                name = f"{part.name} {len(named) + 1}" if part.name in named else part.name
                named[name] = part
            if heads != slice(None):
                one = heads.stop == heads.start + 1
                where = f"head {heads.stop}" if one else f"heads {heads.start + 1}-{heads.stop}"
                named = {f"{name} of {where}": part for name, part in named.items()}
            yield heads.start or 0, named, group

    def scores(self, length: int) -> dict[str, Array]:
        """R (H, length, length), or R₁R₂ᵀ, of each function that does not read the input.

        With the first layer the relative position bias too, which all layers of a stack share.
        """
        own = {name: function for name, function in self.functions.items() if not function.num_features}
        found = {n: _to_array(f((), Positions(length, length), None).dense(length)) for n, f in own.items()}
        if self.bias is not None and self.number == 1:
            positions = torch.arange(length, device=self.bias.weight.device)
            found["relative_position_bias"] = _to_array(self.bias(positions, positions))
        return found


def attention_layers(model: nn.Module) -> list[AttentionLayer]:
    """The self-attention layers of a model, those of the encoder first."""
    return [
        AttentionLayer(stack.side, number, block.self_attn, block.is_causal, stack.relative_attention_bias)
        for stack in model.modules()
        if isinstance(stack, SynthesizerStack)
        for number, block in enumerate(cast(Iterable[SynthesizerBlock], stack.layers), start=1)
    ]


class Explanation(NamedTuple):
    """What attention depends on.

    Attributes:
        heads: for each layer of self-attention and head, `explained_by_random` and `explained_by_dense`: the shares of
            the KL divergence from uniform attention that position alone and the own token alone explain.
        loss: nats per label.
        removed: the `loss_increase` without a `function`, in a `layer` of a `stack` (None: in all).
    """

    heads: Sequence[Sequence[Mapping[str, float]]]
    loss: float
    removed: Sequence[Mapping[str, Any]]


@torch.inference_mode()
def attention_weights(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> dict[str, list[Array]]:
    """By stack ("encoder", "decoder", "cross") the weights (H, T, S) of each layer, for a batch of one, unpadded."""
    names = {attention_layers(model)[0].stack: "attentions"}
    if model.config.is_encoder_decoder:
        names = {"encoder": "encoder_attentions", "decoder": "decoder_attentions", CROSS: "cross_attentions"}
    else:
        inputs = {name: value for name, value in inputs.items() if name != "labels"}
    output = model(**{name: value.to(model.device) for name, value in inputs.items()}, output_attentions=True)
    return {stack: [_to_array(weights[0]) for weights in output[name]] for stack, name in names.items()}


def measure_attention(model: PreTrainedModel, sample: Iterable[Inputs]) -> dict[str, list[WeightStatistics]]:
    """The statistics of each layer over a sample, by stack."""
    causal = {layer.stack: layer.is_causal for layer in attention_layers(model)}
    found: dict[str, list[WeightStatistics]] = {}
    for inputs in sample:
        for stack, weights in attention_weights(model, inputs).items():
            if stack not in found:
                found[stack] = [WeightStatistics(len(w), causal.get(stack, False), stack != CROSS) for w in weights]
            for statistics, array in zip(found[stack], weights, strict=True):
                statistics.add(array)
    return found


class AttentionMaps(NamedTuple):
    """One kind of attention on one text: the weights (H, T, S) and synthesizers of its layers, and its axes.

    An axis is what its tokens are ("target token"), and a label for each.
    """

    title: str
    synthesizers: Sequence[str]
    weights: Sequence[Array]
    rows: tuple[str, Sequence[str]]
    columns: tuple[str, Sequence[str]]
    is_causal: bool


def attention_maps(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, inputs: Inputs
) -> tuple[str, dict[str, AttentionMaps]]:
    """The text of an input that `with_output` returned, and by stack the maps of all layers."""

    def labels(name: str, kind: str) -> tuple[str, list[str]]:
        return kind, readable_tokens(tokenizer, inputs[name][0].tolist())

    texts = decode(tokenizer, inputs["input_ids"].tolist())
    sides = dict.fromkeys(("encoder", "decoder"), (labels("input_ids", "token"),) * 2)
    if model.config.is_encoder_decoder:
        texts += decode(tokenizer, inputs["labels"].tolist())
        source, read = labels("input_ids", "source token"), labels("decoder_input_ids", "target token read")
        written = labels("labels", "target token written")
        sides = {"encoder": (source, source), "decoder": (read, read), CROSS: (written, source)}
    maps = {}
    for stack, weights in attention_weights(model, inputs).items():
        layers = [layer for layer in attention_layers(model) if layer.stack == stack]
        title = "Cross-attention" if stack == CROSS else f"{stack.capitalize()} self-attention"
        names = [layer.module.synthesizer for layer in layers] or ["vanilla"] * len(weights)
        maps[stack] = AttentionMaps(title, names, weights, *sides[stack], any(layer.is_causal for layer in layers))
    return " → ".join(texts), maps


def with_output(model: PreTrainedModel, inputs: Inputs) -> Inputs:
    """Inputs to draw: those without labels, and for an encoder-decoder its greedy output, as it reads and writes it."""
    given = {name: value.to(model.device) for name, value in inputs.items() if name != "labels"}
    if not model.config.is_encoder_decoder:
        return given
    limit = output_limit(given["input_ids"].shape[1], model.config.max_position_embeddings)
    # transformers types `generate` for any model and any output.
    output = cast(Any, model).generate(**given, max_new_tokens=limit, num_beams=1, do_sample=False)
    return {**given, "decoder_input_ids": output[:, :-1], "labels": output[:, 1:]}


def text_inputs(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[Inputs]:
    """The model's arguments for each text.

    Raises:
        UserError: a text is longer than the model's maximum.
    """
    inputs = []
    start, maximum = model.config.bos_token_id, model.config.max_position_embeddings
    starts = not model.config.is_encoder_decoder and attention_layers(model)[0].is_causal and start is not None
    for number, row in enumerate(encode(tokenizer, texts), start=1):
        row = np.insert(row, 0, start) if starts and row[0] != start else row
        if len(row) > maximum:
            raise UserError(f"text {number} of {len(texts)}: got {len(row)} tokens; expected at most {maximum}")
        ids = torch.from_numpy(row.astype(np.int64))[None]
        inputs.append({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    return inputs


def example_inputs(task: Task[Any, Any], model: PreTrainedModel, example: Any) -> list[Inputs]:
    """The model's arguments for one example, labels included; an entry for each sentence if it has several in a row."""
    batch = task.collate([example], cast(int, model.config.pad_token_id))
    segments = batch.pop("segment_ids", None)
    if segments is None:
        return [batch]
    # Models return no attention weights for several sentences in a row.
    found = []
    for segment in [number for number in segments[0].unique_consecutive().tolist() if number]:
        sentence = {name: value[:, segments[0] == segment] for name, value in batch.items()}
        found.append({**sentence, "attention_mask": torch.ones_like(sentence["input_ids"])})
    return found


def readable_tokens(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """A label for each id: ␣ is a space, � a part of a character; long tokens end with …."""
    labels = []
    for token in ids:
        text = str(tokenizer.decode([token], clean_up_tokenization_spaces=False)).replace(" ", "␣")
        text = "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)
        labels.append(text if len(text) <= _LONGEST_LABEL else f"{text[: _LONGEST_LABEL - 1]}…")
    return labels


def initial_model(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    """The model as a run with `seed` started: built from the configuration after the same seed."""
    config = copy.deepcopy(model.config)
    # Otherwise the new model would name the folder of the trained one.
    config._name_or_path = ""
    set_seed(seed)
    return type(model)(config).eval()


def shares_start(before: nn.Module, after: nn.Module) -> bool:
    """Whether `after` was trained from `before`, which has the same configuration.

    Training adds to the initial weights; two independent draws of n weights correlate by about 1/√n. So their
    correlation has to exceed six times that.
    """
    states = [module.state_dict() for module in (before, after)]
    # Vectors start at ones or zeros in any model.
    names = [name for name, value in states[0].items() if value.dim() > 1]
    old, new = (torch.cat([state[name].flatten().double().cpu() for name in names]) for state in states)
    return bool(old @ new / (old.norm() * new.norm()) * len(old) ** 0.5 > 6)


def _to_array(values: Tensor) -> Array:
    return values.detach().float().cpu().numpy()
