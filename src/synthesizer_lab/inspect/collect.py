"""What an inspection reads from a model: attention weights on texts, α, R and biases; and their statistics.

Shape legend: H heads, T queries (rows), S keys (columns).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from scipy import special
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from synthetic_attention.attention import SynthesizerAttention
from synthetic_attention.logits import Positions
from synthetic_attention.synthesizers import SynthesizingFunction

from ..attention.layers import AttentionLayer, attention_layers
from ..data.examples import IGNORED, padded_inputs
from ..data.tokenizer import decode, encode
from ..errors import UserError
from ..tasks.generation import output_limit

Array = np.ndarray[Any, np.dtype[Any]]
# Histogram bins, eight per decade; smaller weights fall into the first.
EDGES: Array = np.logspace(-6, 0, 49)
# The k of the bands |i − j| ≤ k.
BANDS = (0, 1, 2, 4)
# A weight is small if it is less than this share of a uniform weight.
_SMALL = 0.1
CROSS = "cross"
_LONGEST_LABEL = 14
Inputs = dict[str, Tensor]


class Part(NamedTuple):
    """A function of a layer.

    Attributes:
        name: numbered if it comes twice in a mixture, with its heads if these are not all.
        first_head: from 0.
        group: the mixture that it is in, with all heads of its group; or itself.
        place: its number in the mixture.
    """

    name: str
    first_head: int
    function: SynthesizingFunction
    group: SynthesizingFunction
    place: int

    @property
    def alpha(self) -> Array | None:
        """α (H,) for the heads of its group, (1,) where they share it; None without a mixture or for a plain sum."""
        weights = self.group.weights()
        return None if weights is None else _to_array(weights[self.place])


def parts_of(layer: AttentionLayer) -> list[Part]:
    """The functions of a layer; none of a baseline."""
    found: list[Part] = []
    for heads, group in layer.module.function.groups() if isinstance(layer.module, SynthesizerAttention) else []:
        first, where, names = heads.start or 0, "", list[str]()
        if heads != slice(None):
            one = heads.stop == first + 1
            where = f" of head {heads.stop}" if one else f" of heads {first + 1}-{heads.stop}"
        for index, function in enumerate(group.components):
            names.append(f"{function.name} {index + 1}" if function.name in names else function.name)
            found.append(Part(f"{names[-1]}{where}", first, function, group, index))
    return found


def read_scores(layer: AttentionLayer, length: int) -> dict[str, tuple[int, Array]]:
    """The first head, and R (H, length, length) or R₁R₂ᵀ, of each function that does not read the input.

    With the first layer the relative position bias too, which all layers of a stack share.
    """
    positions, found = Positions(length, length), dict[str, tuple[int, Array]]()
    for part in parts_of(layer):
        if not part.function.num_features:
            found[part.name] = part.first_head, _to_array(part.function((), positions, None).dense(length))
    if layer.bias is not None and layer.number == 1:
        indices = torch.arange(length, device=layer.bias.weight.device)
        found["relative_position_bias"] = 0, _to_array(layer.bias(indices, indices))
    return found


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


def measure_attention(model: PreTrainedModel, sample: Iterable[Inputs]) -> dict[tuple[str, int], WeightStatistics]:
    """The statistics over a sample, by stack and number of the layer."""
    causal = {layer.stack: layer.is_causal for layer in attention_layers(model)}
    found: dict[tuple[str, int], WeightStatistics] = {}
    for inputs in sample:
        if "labels" in inputs and (inputs["labels"] == IGNORED).all():
            # Some examples of WSC have no target: the decoder reads its own output.
            inputs = with_output(model, inputs)
        for stack, weights in attention_weights(model, inputs).items():
            for number, array in enumerate(weights, start=1):
                new = WeightStatistics(causal.get(stack, False), stack != CROSS)
                found.setdefault((stack, number), new).add(array)
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
        UserError: a text is longer than the model's maximum, or the model reads pairs of texts.
    """
    if model.config.type_vocab_size:
        raise UserError("got texts for a model of pairs of texts; expected --data, or neither for its own data")
    inputs = []
    start, maximum = model.config.bos_token_id, model.config.max_position_embeddings
    starts = not model.config.is_encoder_decoder and attention_layers(model)[0].is_causal and start is not None
    for number, row in enumerate(encode(tokenizer, texts), start=1):
        row = np.insert(row, 0, start) if starts and [*row[:1]] != [start] else row
        if len(row) > maximum:
            raise UserError(f"text {number} of {len(texts)}: got {len(row)} tokens; expected at most {maximum}")
        inputs.append(padded_inputs([row], 0))
    return inputs


def readable_tokens(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """A label for each id: ␣ is a space, � a part of a character; long tokens end with …."""
    labels = []
    for token in ids:
        text = str(tokenizer.decode([token], clean_up_tokenization_spaces=False)).replace(" ", "␣")
        text = "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)
        labels.append(text if len(text) <= _LONGEST_LABEL else f"{text[: _LONGEST_LABEL - 1]}…")
    return labels


def _to_array(values: Tensor) -> Array:
    return values.detach().float().cpu().numpy()


def visible_keys(rows: int, columns: int, is_causal: bool) -> Array:
    """(T, S) bool: the keys that each row may attend to."""
    everything = np.ones((rows, columns), dtype=bool)
    return np.tril(everything) if is_causal else everything


class WeightStatistics:
    """Statistics of one layer's attention weights over many sequences.

    Rows with a single visible key are skipped: their weight is always 1. Each other row counts the same. `distances`
    says whether rows and columns are positions of the same sequence; `histogram` counts the weights of all heads.
    """

    def __init__(self, is_causal: bool, distances: bool) -> None:
        self.is_causal, self.distances = is_causal, distances
        self.histogram = np.zeros(len(EDGES) - 1, dtype=np.int64)
        self.lengths: list[int] = []
        self._rows: dict[str, list[Array]] = {}

    def add(self, weights: Array) -> None:
        """Add the weights (H, T, S) of one sequence."""
        _, rows, columns = weights.shape
        self.lengths.append(rows)
        visible = visible_keys(rows, columns, self.is_causal)
        many = visible.sum(axis=1) > 1
        visible, weights = visible[many], weights[:, many].astype(np.float64)
        # A convolution's window can reach outside the sequence: the weights inside then sum to less than 1.
        sums = weights.sum(axis=-1, keepdims=True)
        weights /= np.where(sums > 0, sums, 1.0)
        keys = visible.sum(axis=1)
        self.histogram += np.histogram(np.clip(weights[:, visible], EDGES[0], 1.0), bins=EDGES)[0]
        entropy = special.entr(weights).sum(axis=-1)
        values = {
            "entropy": entropy,
            "relative_entropy": entropy / np.log(keys),
            "small_weights": ((weights < _SMALL / keys[:, None]) & visible).sum(axis=-1) / keys,
            "largest_weight": weights.max(axis=-1, initial=0.0),
        }
        if self.distances:
            far = np.abs(np.flatnonzero(many)[:, None] - np.arange(columns))
            values["distance"] = (weights * far).sum(axis=-1)
            values["uniform_distance"] = np.broadcast_to((far * visible).sum(axis=-1) / keys, entropy.shape)
        for name, value in values.items():
            self._rows.setdefault(name, []).append(value)

    def per_head(self) -> list[dict[str, float]]:
        """Means over rows, for each head; docs/inspecting.md explains them."""
        means = {name: np.concatenate(rows, axis=1) for name, rows in self._rows.items()}
        if not means["entropy"].size:
            return []
        heads = zip(*(values.mean(axis=1).round(6).tolist() for values in means.values()), strict=True)
        return [dict(zip(means, values, strict=True)) for values in heads]


def describe_scores(scores: Array, is_causal: bool) -> dict[str, Any]:
    """For each head of R (H, N, N) the standard deviation, and by k the share of softmax(R) within |i − j| ≤ k."""
    size = scores.shape[-1]
    masked = np.where(visible_keys(size, size, is_causal), scores.astype(np.float64), -np.inf)
    weights = special.softmax(masked, axis=-1)
    far = np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
    mass = {str(k): (weights * (far <= k)).sum(axis=-1).mean(axis=-1).tolist() for k in BANDS}
    return {"std": scores.std(axis=(1, 2), where=np.isfinite(masked)).tolist(), "band_mass": mass}
