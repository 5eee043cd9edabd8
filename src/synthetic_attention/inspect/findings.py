"""What an inspection finds: for each subject the pictures, the part of the page, and the numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..compare.statistics import BANDS, WeightStatistics, band_mass
from ..tables import LayerTable, draw_table
from .biases import StackBiases, draw_biases
from .figures import save
from .gates import LayerGates, draw_gates
from .histograms import LayerHistogram, draw_histograms
from .maps import AttentionMap, draw_layer, draw_overview
from .page import Picture, Section, Table
from .probe import CROSS, AttentionLayer, Descent, descent, layers, relative_biases

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from transformers import PreTrainedModel

__all__ = ["Album", "Survey", "find_biases", "find_gates", "find_maps", "find_tables", "find_weights", "survey"]

Array = np.ndarray[Any, np.dtype[Any]]
# Nearly all sequences of the sample are this long or shorter: the part of R that there is something to see in.
_QUANTILE = 0.95


@dataclass
class Album:
    """The folder that pictures are drawn into, and their names."""

    folder: Path
    files: list[str] = field(default_factory=list)

    def draw(self, figure: Figure, name: str, caption: str) -> Picture:
        """Write `figure` as NAME.png."""
        file = f"{re.sub(r'[^A-Za-z0-9]+', '-', name).strip('-')}.png"
        save(figure, self.folder / file)
        self.files.append(file)
        return Picture(file, caption)


@dataclass
class Survey:
    """Attention over a sample: statistics of each layer by stack, and the lengths of the sequences in each stack."""

    examples: int = 0
    statistics: dict[str, list[WeightStatistics]] = field(default_factory=dict)
    lengths: dict[str, list[int]] = field(default_factory=dict)

    def typical_length(self, stack: str) -> int:
        """The length that few sequences of a stack exceed."""
        return max(2, int(np.quantile(self.lengths[stack], _QUANTILE)))


def survey(model: PreTrainedModel, sample: Iterable[Mapping[str, Sequence[Array]]]) -> Survey:
    """Gather the attention weights of every example of a sample, each as `attention_weights` gives them."""
    causal = {layer.stack: layer.is_causal for layer in layers(model)}
    result = Survey()
    for example in sample:
        result.examples += 1
        for stack, weights in example.items():
            heads = weights[0].shape[0]
            found = result.statistics.setdefault(
                stack,
                [WeightStatistics(heads, causal.get(stack, False), distances=stack != CROSS) for _ in weights],
            )
            for statistics, array in zip(found, weights, strict=True):
                statistics.add(array)
            result.lengths.setdefault(stack, []).append(weights[0].shape[1])
    return result


def find_maps(album: Album, number: int, text: str, maps: Mapping[str, Sequence[AttentionMap]]) -> Section:
    """The heat maps of one text: all heads at a glance, and the heads of each layer with tokens on the axes."""
    section = Section(f"Text {number}", [text], folded_name="each layer, with tokens")
    for stack, of_layers in maps.items():
        title = of_layers[0].title
        section.pictures.append(
            album.draw(draw_overview(of_layers), f"text{number}-{stack}-all", f"{title}, all layers and heads")
        )
        for attention in of_layers:
            name = f"text{number}-{stack}-{_layer_name(attention.layer, len(of_layers))}"
            section.folded.append(album.draw(draw_layer(attention), name, f"{title}, layer {attention.layer}"))
    return section


def find_weights(
    album: Album, found: Survey, start: Survey | None, model: PreTrainedModel
) -> tuple[Section, list[dict[str, Any]]]:
    """Histograms of the attention weights per layer, and how they are spread in each head.

    Args:
        start: the same sample before training; None where that is not known.
    """
    names = {(layer.stack, layer.number): layer.module.synthesizer for layer in layers(model)}
    rows: dict[str, list[LayerHistogram]] = {}
    numbers: list[dict[str, Any]] = []
    lines = []
    for stack, of_layers in found.statistics.items():
        for number, statistics in enumerate(of_layers, start=1):
            name, counts = names.get((stack, number), "vanilla"), statistics.counts.sum(axis=0)
            before = None if start is None else start.statistics[stack][number - 1].counts.sum(axis=0)
            rows.setdefault(stack, []).append(LayerHistogram(number, name, counts, before))
            heads = statistics.per_head()
            entry = {"stack": stack, "layer": number, "synthesizer": name, "heads": heads, "histogram": counts.tolist()}
            numbers.append(entry if before is None else {**entry, "histogram_before": before.tolist()})
            lines.append([f"{stack}, layer {number} ({name})", *_means(heads)])
    title = f"Attention weights per layer ({found.examples} examples)"
    picture = album.draw(draw_histograms(rows, title), "weights", "Histograms of the attention weights of each layer")
    headings = ("mean over heads", "relative entropy", "small weights", "largest weight", "distance", "if uniform")
    section = Section(
        "Attention weights",
        [
            f"Over {found.examples} examples; masked keys, and rows that see one key only, are left out. Relative "
            "entropy is 1 where attention is uniform. Small weights: the share of keys that get less than a tenth of "
            "a uniform weight. Distance: how many tokens away attention is, and would be if it were uniform. In the "
            "histograms weights below the axis are in the first bar. " + _explain_start(start)
        ],
        [Table(headings, lines)],
        [picture],
    )
    return section, numbers


def _explain_start(start: Survey | None) -> str:
    if start is not None:
        return "The line is the same sample before training, in the model that the run started from."
    return "Before training is not shown: there is no sample of data, or what the run started from is not there."


def _means(heads: Sequence[Mapping[str, float]]) -> list[str]:
    names = ("relative_entropy", "small_weights", "largest_weight", "distance", "uniform_distance")
    shown = []
    for name in names:
        # None for cross-attention, which has no distances, and where every row saw one key only.
        values = [head[name] for head in heads if name in head]
        shown.append(f"{np.mean(values):.2f}" if values else "")
    return shown


def find_tables(
    album: Album, found: Survey, before: PreTrainedModel | None, model: PreTrainedModel, start: str
) -> tuple[Section | None, dict[str, Any]]:
    """R of each layer before and after training, and how near to the diagonal it attends; None where there is no R.

    Args:
        before: what the run should have started from; None if that is not there any more.
        start: what that is, in words.
    """
    begun = model if before is None else before
    origin = descent(begun, model)
    if origin is None:
        return None, {}
    if before is None:
        origin = Descent(0.0, None, False)
    section = Section("R before and after training", folded_name="the other layers")
    depths = Counter(layer.stack for layer in layers(model))
    numbers: list[dict[str, Any]] = []
    lines = []
    for old, new in zip(layers(begun), layers(model), strict=True):
        length = min(found.typical_length(new.stack), new.module.max_length or 1)
        starts = old.tables(length) if origin.certain else {}
        for name, after in new.tables(length).items():
            table = LayerTable(new.stack, new.number, name, after, starts.get(name), new.is_causal)
            picture = album.draw(
                draw_table(table),
                f"R-{new.stack}-{_layer_name(new.number, depths[new.stack])}-{name}",
                f"R of {name}, {new.stack}, layer {new.number}",
            )
            (section.folded if new.number > 1 else section.pictures).append(picture)
            entry = _describe(table)
            numbers.append(entry)
            lines.append([f"{new.stack}, layer {new.number} ({name})", *_near(entry)])
    section.paragraphs = [_explain(origin.certain, origin.unchanged, start)]
    section.tables = [
        Table(("mean over heads", "deviation before", "after", "within ±1 before", "after", "if uniform"), lines)
    ]
    return section, {"initial": asdict(origin), "layers": numbers}


def _explain(certain: bool, unchanged: float, start: str) -> str:
    shown = (
        "R is shown as it is learned, without the mixture's weight α, and as far as nearly all sequences of the sample "
        "reach. Within ±1: how much of softmax(R) alone lies on the diagonal and beside it."
    )
    if certain:
        return (
            f"R before training is {start}; {unchanged:.1%} of it are bit for bit what they are in the trained model, "
            f"positions that no training sequence reached. {shown}"
        )
    return (
        f"R before training is not shown: {start} is not there or not what the trained model started from, or too "
        f"little of it is left to tell. {shown}"
    )


def _describe(table: LayerTable) -> dict[str, Any]:
    size = table.after.shape[-1]
    uniform = band_mass(np.zeros((1, size, size)), table.is_causal)[0]
    states = {"after": table.after, **({} if table.before is None else {"before": table.before})}
    heads = [
        {
            state: {
                "std": float(scores[head].std()),
                "band_mass": dict(zip(map(str, BANDS), mass[head].tolist(), strict=True)),
            }
            for state, (scores, mass) in {
                state: (scores, band_mass(scores, table.is_causal)) for state, scores in states.items()
            }.items()
        }
        for head in range(len(table.after))
    ]
    return {
        "stack": table.stack,
        "layer": table.layer,
        "function": table.function,
        "positions": size,
        "uniform_band_mass": dict(zip(map(str, BANDS), uniform.tolist(), strict=True)),
        "heads": heads,
    }


def _near(entry: Mapping[str, Any]) -> list[str]:
    def mean(state: str, *path: str) -> str:
        values = []
        for head in entry["heads"]:
            if state not in head:
                return "–"
            value = head[state]
            for key in path:
                value = value[key]
            values.append(value)
        return f"{np.mean(values):.3g}"

    bands = [mean(state, "band_mass", "1") for state in ("before", "after")]
    deviations = [mean(state, "std") for state in ("before", "after")]
    return [*deviations, *bands, f"{entry['uniform_band_mass']['1']:.3g}"]


def find_gates(album: Album, model: PreTrainedModel) -> tuple[Section | None, list[dict[str, Any]]]:
    """The weights α of the mixtures; None where nothing is mixed with weights."""
    gates = [gate for layer in layers(model) if (gate := _gates(layer)) is not None]
    if not gates:
        return None, []
    picture = album.draw(draw_gates(gates), "gates", "α of each layer and head; white is 1/2")
    section = Section("Gates of the mixtures", ["The weight α of each function on the logits."], [], [picture])
    numbers = []
    for gate in gates:
        alpha = dict(zip(gate.components, gate.alpha.tolist(), strict=True))
        numbers.append({"stack": gate.stack, "layer": gate.layer, "alpha": alpha})
    return section, numbers


def find_biases(
    album: Album, before: PreTrainedModel | None, model: PreTrainedModel
) -> tuple[Section | None, list[dict[str, Any]]]:
    """The biases of relative positions; None where positions are told in another way.

    Args:
        before: the model that this one started from; None where that is not known.
    """
    after = relative_biases(model)
    if not after:
        return None, []
    start = {} if before is None else relative_biases(before)
    stacks = [
        StackBiases(stack, distances, biases, start[stack][1] if stack in start else None)
        for stack, (distances, biases) in after.items()
    ]
    picture = album.draw(draw_biases(stacks), "biases", "What each head adds to its logits at each distance")
    lines, numbers = [], []
    for each in stacks:
        entry = {"stack": each.stack, "distances": each.distances.tolist(), "after": each.after.tolist()}
        numbers.append(entry if each.before is None else {**entry, "before": each.before.tolist()})
        sizes = [None if of is None else float(np.sqrt(np.mean(of**2))) for of in (each.before, each.after)]
        lines.append([each.stack, *("–" if size is None else f"{size:.3g}" for size in sizes)])
    section = Section(
        "Relative position biases",
        [
            "A number for each head and distance, the same in all layers of a stack and for all tokens, added to the "
            "logits of whatever makes them. Far distances share buckets, beyond the last one all are the same."
        ],
        [Table(("root mean square", "before", "after"), lines)],
        [picture],
    )
    return section, numbers


def _gates(layer: AttentionLayer) -> LayerGates | None:
    alpha = layer.gates()
    return None if alpha is None else LayerGates(layer.stack, layer.number, tuple(layer.functions), alpha)


def _layer_name(number: int, count: int) -> str:
    """With zeros in front, so that files sort as layers do."""
    return f"layer{number:0{len(str(count))}}"
