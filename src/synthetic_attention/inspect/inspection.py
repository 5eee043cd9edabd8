"""Look inside a trained run: pictures of what attends to what, R before and after training, and numbers beside them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ..baselines import Baseline
from ..compare.statistics import EDGES
from ..data.examples import Examples
from ..data.hub import is_hub_name
from ..tasks import UserError
from ..tasks.base import Task
from ..training.device import choose_device
from ..training.failures import damage_reported, shortage_reported
from ..training.run_folder import RunFolder, data_path
from ..training.source import Source
from .attention_maps import Inputs, choose_examples, example_attention, example_inputs, map_attention, text_inputs
from .figures import glyphs_reported
from .findings import Album, find_biases, find_gates, find_maps, find_tables, find_weights, survey
from .page import Section, render
from .probe import descends, initial_model, layers

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

__all__ = ["inspect_run"]

Report = Callable[[str], object]
_PAGE, _NUMBERS = "index.html", "inspect.json"
_LESS_MEMORY = "give shorter texts, a smaller --sample, or a device that has more"
_NOTE = (
    "Layers and heads count from 1, positions from 0. Within a picture the same colour is the same weight; the darkest "
    "stands for 0.1, 0.25, 0.5 or 1 and more, as the scale beside it says."
)


@dataclass(frozen=True, eq=False)
class _Subject:
    """What is looked at.

    Attributes:
        described: the run, its task and synthesizer, and where the sample is from.
        info: what run.yaml has.
        task: of the run.
        shown: the inputs that heat maps are drawn for.
        pool: the inputs that numbers are taken over; None for those that are shown.
    """

    described: dict[str, Any]
    info: dict[str, Any]
    task: Task[Any, Any]
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    shown: Sequence[Inputs]
    pool: Sequence[Inputs] | None


def inspect_run(
    path: Path,
    texts: Sequence[str] = (),
    *,
    data: Path | None = None,
    split: str = "valid",
    count: int = 2,
    sample: int = 200,
    output: Path | None = None,
    device: str | None = None,
    report: Report = print,
) -> Path:
    """Draw the attention of the best model of a run, on texts and over a sample of its data, and write a page of it.

    Args:
        texts: what to draw heat maps for; by default `count` examples of the split.
        data: the data; by default that which the run was trained on. Where that is gone, the texts are all there is.
        split: the part of the data that examples are taken from.
        sample: the number of examples that histograms and numbers are taken over.
        output: the folder to write, by default inspect/ in the run. Results of an earlier call are replaced.
        device: as `choose_device` takes it.
        report: gets a line for what a user should know.

    Returns:
        The page.

    Raises:
        UserError: the run, the data, a text or the folder cannot be used.
    """
    target = path / "inspect" if output is None else output
    subject = _read_subject(path, texts, data, split, count, sample, device, report)
    earlier = _files_of_earlier_call(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".partial-") as name:
        album = Album(Path(name))
        with glyphs_reported() as missing, shortage_reported(_LESS_MEMORY, lambda: "nothing was written"):
            sections, numbers = _find(album, subject, report)
            files = [*album.files, _PAGE, _NUMBERS]
            title = "{run}: {task}, {synthesizer}".format(**subject.described)
            (album.folder / _PAGE).write_text(render(title, sections), encoding="utf-8")
            text = json.dumps({**subject.described, **numbers, "files": files}, indent=2, allow_nan=False)
            (album.folder / _NUMBERS).write_text(f"{text}\n", encoding="utf-8")
            _publish(album.folder, files, target, earlier)
    for sign in sorted(set(missing)):
        report(f"{sign}; it is drawn as a box. Install a font that has it, such as Noto Sans CJK")
    return target / _PAGE


def _read_subject(
    path: Path,
    texts: Sequence[str],
    data: Path | None,
    split: str,
    count: int,
    sample: int,
    device: str | None,
    report: Report,
) -> _Subject:
    run = RunFolder(path)
    info = run.read_info()
    task = run.read_task(info)
    model, tokenizer = run.load(task, choose_device(device))
    for layer in layers(model):
        if isinstance(layer.module, Baseline) and not layer.module.has_shares:
            raise UserError(
                f"{path}: got {layer.module.name!r} in the {layer.stack}; expected a run whose attention weights are "
                "shares of the tokens. Its own are over sums of tokens, and what they give to a token may be negative"
            )
    shown = text_inputs(model, tokenizer, texts)
    pool, origin = None, "the texts"
    if texts and data is None and not is_hub_name(Path(info["data"])) and not Path(info["data"]).exists():
        report(f"{info['data']}: the data of the run is not there any more; the numbers are of the texts alone")
    else:
        examples = _read_examples(task, data_path(info, data), split, model, tokenizer)
        chosen = np.linspace(0, len(examples) - 1, min(sample, len(examples))).astype(int).tolist()
        pool = [inputs for index in chosen for inputs in example_inputs(task, model, examples, index)]
        origin = f"{split} data"
        if not texts:
            shown = [example_inputs(task, model, examples, index)[0] for index in choose_examples(examples, count)]
    described = {
        "run": str(path),
        "task": task.name,
        "synthesizer": info["settings"]["synthesizer"],
        "sample": origin,
    }
    return _Subject(described, info, task, model, tokenizer, shown, pool)


def _read_examples(
    task: Task[Any, Any], data: Path, split: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> Examples[Any]:
    """The examples of a split; those over the model's maximum are left out."""
    return task.examples(task.read(data, split), tokenizer, model.config.max_position_embeddings, "drop")


def _find(album: Album, subject: _Subject, report: Report) -> tuple[list[Section], dict[str, Any]]:
    """All sections of the page, and the numbers."""
    model, sections, seen = subject.model, [], []
    for number, inputs in enumerate(subject.shown, start=1):
        text, maps = map_attention(model, subject.tokenizer, inputs)
        report(f"drawing text {number} of {len(subject.shown)}: {sum(map(len, maps.values()))} layers")
        sections.append(find_maps(album, number, text, maps))
        seen.append({stack: [each.weights for each in of_layers] for stack, of_layers in maps.items()})
    sample = seen if subject.pool is None else (example_attention(model, inputs) for inputs in subject.pool)
    found = survey(model, sample)
    before, origin = _start(subject, report)
    start, ancestor = None, before if before is not None and descends(before, model) else None
    if subject.pool is not None and ancestor is not None:
        start = survey(ancestor, (example_attention(ancestor, inputs) for inputs in subject.pool))
    weights, weight_numbers = find_weights(album, found, start, model)
    tables, table_numbers = find_tables(album, found, before, model, origin)
    gates, gate_numbers = find_gates(album, model)
    biases, bias_numbers = find_biases(album, ancestor, model)
    note = Section("How to read this", [_NOTE])
    return [note, *(part for part in (*sections, weights, tables, gates, biases) if part is not None)], {
        "examples": found.examples,
        "histogram_edges": EDGES.tolist(),
        "attention": weight_numbers,
        "random": table_numbers,
        "gates": gate_numbers,
        "relative_biases": bias_numbers,
    }


def _start(subject: _Subject, report: Report) -> tuple[PreTrainedModel | None, str]:
    """The model that the run started from, None if that is not there any more; and what it is, in words."""
    info, model = subject.info, subject.model
    seed, source = info["settings"]["seed"], info.get("from")
    before = initial_model(model, seed).eval()
    origin = f"what the run's seed, {seed}, gives with these versions of the libraries"
    if source is not None and not source["scratch"]:
        origin = f"that of {source['path']}, whose weights the run started from"
        try:
            opened = Source.reopen(source, type(subject.task))
            opened.fill(subject.task, before, opened.model())
        except UserError as error:
            report(f"before training is not shown: {error}")
            return None, origin
    # transformers' wrapper of `to` has lost its type.
    cast(Any, before).to(model.device)
    return before, origin


def _files_of_earlier_call(folder: Path) -> list[str]:
    """What an earlier call has written into `folder`.

    Raises:
        UserError: something else is there.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: exists and is not a folder; choose another --output")
    if not folder.exists() or not any(folder.iterdir()):
        return []
    if not (folder / _NUMBERS).is_file():
        raise UserError(f"{folder}: has files that `synthesizer inspect` did not write; choose another --output")
    with damage_reported(f"{folder / _NUMBERS}"):
        content: Mapping[str, Any] = json.loads((folder / _NUMBERS).read_text(encoding="utf-8"))
        # Names only: no path out of the folder.
        return [Path(name).name for name in content["files"]]


def _publish(stage: Path, files: Sequence[str], target: Path, earlier: Sequence[str]) -> None:
    """Move the new files into their place, the list of them last, then remove those of the earlier call."""
    target.mkdir(exist_ok=True)
    for file in files:
        (stage / file).replace(target / file)
    for file in set(earlier) - set(files):
        (target / file).unlink(missing_ok=True)
