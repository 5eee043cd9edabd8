"""The model card of a run: README.md, as the Hugging Face Hub shows it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from ..data.source import is_hub_name
from ..errors import damage_reported
from ..tasks.base import Task, format_score
from ..tasks.glue import Glue
from ..tasks.translation import Translation
from .run_folder import RunFolder

_MARK = "<!-- `synthesizer` replaces this file after training and evaluation, unless this line is deleted. -->"
# Tasks of the Hub, by the model's class or our task.
_TAGS = {"SynthesizerForCausalLM": "text-generation", "SynthesizerForSequenceClassification": "text-classification"}
_TAGS |= {"translation": "translation", "summarization": "summarization"}
_PIPELINE = """from transformers import pipeline

RUN = "."  # this folder
print(pipeline("{tag}", model=RUN)("…"{options}))"""
_GENERATE = """from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

RUN = "."  # this folder
tokenizer, model = AutoTokenizer.from_pretrained(RUN), AutoModelForSeq2SeqLM.from_pretrained(RUN)
print(tokenizer.batch_decode(model.generate(**tokenizer("…", return_tensors="pt")), skip_special_tokens=True))"""


def update_model_card(run: RunFolder, metrics: Mapping[str, Any]) -> None:
    """Write README.md from run.yaml, metrics.json and the evaluations, unless the user has made it their own."""
    path = run.path / "README.md"
    if not metrics["best"] or (path.exists() and _MARK not in path.read_text(encoding="utf-8", errors="replace")):
        return
    info = run.read_info()
    task, data = run.read_task(info), Path(info["data"])
    model = task.model_class.__name__
    tag = _TAGS.get(model) or _TAGS.get(task.name)
    name = _data_name(data)
    # A run of a comparison is in ROW/seed-N.
    row = run.path.parent
    title = f"{row.name}-{run.path.name}" if (row.parent / "results.json").is_file() else run.path.name
    rows = _rows(run, metrics["best"], info["data"])
    results = [
        EvalResult(
            task_type=tag or task.name,
            dataset_type=other or name,
            dataset_name=other or name,
            dataset_split=split,
            metric_type=key,
            metric_name=f"{label} ({settings})" if settings else label,
            metric_value=row[key],
        )
        for other, split, settings, row in rows
        for key, label in task.score_labels.items()
        # A score that could not be computed is a text.
        if isinstance(row.get(key), int | float)
    ]
    languages = [task.source, task.target] if isinstance(task, Translation) else None
    if isinstance(task, Glue):
        languages = ["en"]
    header = ModelCardData(
        license="unknown",
        language=languages,
        library_name="transformers",
        tags=["synthesizer", task.name],
        datasets=[name] if is_hub_name(data) else None,
        pipeline_tag=tag,
        model_name=title,
        eval_results=results,
    )
    commands, scores = "\n".join(info["commands"]), "\n".join(_table(rows, task))
    # By default a pipeline generates more tokens than a small model has positions.
    options = ", max_new_tokens=20" if tag == "text-generation" else ""
    usage = _PIPELINE.format(tag=tag, options=options) if model in _TAGS else _GENERATE
    card = f"""\
---
{header.to_yaml()}
---

{_MARK}

# {title}

A [Synthesizer](https://arxiv.org/abs/2005.00743) for {task.name}: `{model}` with \
{metrics["parameters"]:,} parameters and the attention `{metrics["synthesizer"]}`.

## Scores

{scores}

## Use

```python
import synthetic_attention  # registers the models
{usage}
```

## Training

{metrics["steps"]:,} steps on {metrics["train_examples"]:,} {task.unit} of `{data.name}`; `run.yaml` has all settings.

```console
{commands}
```

## License

Before you publish the model, replace `license: unknown` above. The license
of the training data may restrict the choice.
"""
    run.write_text("README.md", card)


def _data_name(data: Path) -> str:
    return str(data).partition(":")[2] if is_hub_name(data) else data.name


def _rows(run: RunFolder, best: Mapping[str, Any], data: str) -> list[tuple[str, str, str, Mapping[str, Any]]]:
    """The validation and each file of evaluation/: the name of data other than the run's, split, settings, content."""
    rows = [("", "validation", f"step {best['step']}", best)]
    for path in sorted((run.path / "evaluation").glob("*.json")):
        # The digest of the data is left out.
        split, _, settings = path.stem.partition(".")
        with damage_reported(path):
            row = json.loads(path.read_text(encoding="utf-8"))
            other = "" if row.get("data", data) == data else _data_name(Path(row["data"]))
        rows.append((other, split, settings.partition(".")[2], row))
    return rows


def _table(rows: Sequence[tuple[str, str, str, Mapping[str, Any]]], task: Task) -> Iterator[str]:
    """A line for each row, with the scores that the task shows."""
    labels = {key: label for key, label in task.score_labels.items() if any(key in row for *_, row in rows)}
    yield f"| | {' | '.join(labels.values())} |\n{'|---' * (len(labels) + 1)}|"
    for other, split, settings, row in rows:
        if labels.keys() & row.keys():
            name = f"{other} {split}{', ' if split == 'validation' else ' '}{settings}".strip()
            yield f"| {name} | {' | '.join(format_score(row[key]) if key in row else '' for key in labels)} |"
