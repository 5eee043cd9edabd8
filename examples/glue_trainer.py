"""Convert an encoder, fine-tune it on GLUE with transformers' Trainer, two epochs for each task, and compare scores.

python examples/glue_trainer.py FOLDER --synthesizers vanilla,random+vanilla --data glue --output runs/glue-minilm

FOLDER is an encoder without a head. A row is a synthesizer; random@calibrated=true is calibrated and distilled on
--text before. Repeated, it continues. The output has the converted models, and results.json as of `compare`.
"""

import argparse
import json
import tempfile
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any, cast

import torch
from transformers import AutoModel, AutoTokenizer, DataCollatorWithPadding, Trainer, TrainingArguments, set_seed

from synthesizer_lab.compare.results import FINISHED, PENDING, SPEEDS, over_seeds, read_results
from synthesizer_lab.compare.rows import Row, parse_rows
from synthesizer_lab.compare.tables import difference_table, markdown, score_columns, score_table
from synthesizer_lab.data.glue import SUITES, read_examples, task_files
from synthesizer_lab.data.source import Source
from synthesizer_lab.heads.run import Conversion, convert_to
from synthesizer_lab.metrics.glue import task_scores
from synthetic_attention import SynthesizerForSequenceClassification

TASKS = SUITES["glue"]
LABELS = {name: name.capitalize() for name in ("matthews", "f1", "accuracy", "pearson", "spearman")}
NONE: dict[str, Any] = {"examples": 0, "truncated": 0, "skipped": 0, "scores": {}, "signatures": {}, "not_computed": {}}
parser = argparse.ArgumentParser()
parser.add_argument("model", help="folder of an encoder without a head, with its tokenizer; or its name on the hub")
parser.add_argument("--synthesizers", type=lambda text: parse_rows([text]), required=True, metavar="ROW,ROW,…")
parser.add_argument("--text", type=Path, help="a sentence per line, for rows with @calibrated=true")
parser.add_argument("--data", type=Path, required=True, help="the folder of the official files, as CoLA/train.tsv")
parser.add_argument("--tasks", nargs="+", default=["cola", "mrpc", "rte", "stsb"], choices=[*TASKS])
parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
parser.add_argument("--max-length", type=int, default=128, help="tokens of the longest text")
parser.add_argument("--learning-rate", type=float, default=5e-5)
parser.add_argument("--output", type=Path, required=True)
args = parser.parse_args()
for row in args.synthesizers:
    fits = row.overrides in ((), ("calibrated=true",)) and not (row.match or row.scratch)
    if not fits or (row.overrides and args.text is None):
        parser.error(f"got the row {row.label}; expected a synthesizer, or with --text SYNTHESIZER@calibrated=true")


def read(name: str, split: str, tokenizer: Any) -> list[dict[str, Any]]:
    """The encoded examples of a split, with their labels; of MNLI the matched ones."""
    task = TASKS[name]
    files = task_files(args.data, task, split)
    examples = [each for each in read_examples(Source(split, (*files.values(),)[:1]), task) if each]
    if not examples:
        parser.error(f"{args.data}: no {split} file of {task.folder}")
    texts = ([each.texts[column] for each in examples] for column in task.texts)
    columns: dict[str, Any] = dict(tokenizer(*texts, truncation=True, max_length=args.max_length))
    columns["labels"] = [each.label for each in examples]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def fine_tune(start: Path, name: str, seed: int, run: dict[str, Any]) -> None:
    """Add the official scores on the validation set to `run`, in the form of results.json of a comparison."""
    tokenizer, classes = AutoTokenizer.from_pretrained(start), len(TASKS[name].labels)
    train, valid = (cast(Any, read(name, split, tokenizer)) for split in ("train", "valid"))
    set_seed(seed)
    # With one label, the model is a regression.
    sizes: Any = {"num_labels": classes or 1, "classifier_pooling": "mean"}
    model = SynthesizerForSequenceClassification.from_pretrained(start, **sizes)
    how: dict[str, Any] = {"num_train_epochs": 2, "learning_rate": args.learning_rate, "warmup_steps": 0.1}
    how |= {"per_device_train_batch_size": 32, "per_device_eval_batch_size": 64, "seed": seed}
    how |= {"save_strategy": "no", "report_to": "none", "disable_tqdm": True, "dataloader_pin_memory": False}
    with tempfile.TemporaryDirectory() as folder:
        collate = DataCollatorWithPadding(tokenizer)
        trainer = Trainer(model, TrainingArguments(folder, **how), collate, train_dataset=train)
        trainer.train()
        outputs: Any = trainer.predict(valid).predictions
    guesses = outputs.argmax(-1) if classes else outputs[:, 0]
    scores = task_scores(name, guesses.tolist(), [row["labels"] for row in valid])
    run["tests"][name] = {**NONE, "examples": len(valid), "scores": scores}
    run |= {"date": datetime.now(UTC).isoformat(timespec="seconds"), "versions": {"torch": torch.__version__}}


def convert_row(row: Row) -> Path:
    """The folder of a row's converted model."""
    start: Path = args.output / row.folder
    if not (start / "model.safetensors").exists():
        calibrated: Any = {"text": args.text, "examples": 300, "distill_steps": 300}
        more = calibrated if row.overrides else {}
        convert_to(args.model, start, Conversion(synthesizer=row.synthesizer, max_length=args.max_length, **more))
    return start


def write(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Write the results."""
    tests: dict[str, Any] = {task: {} for task in args.tasks}
    results: dict[str, Any] = {"rows": [], "runs": runs, "tests": tests, "score_labels": LABELS, "bootstrap": []}
    results |= {"selected_by": "loss", "larger_is_better": False, "tokens": "tokens", "settings": SETTINGS}
    for run in runs:
        run["status"] = FINISHED if all(run["tests"].get(task, NONE)["scores"] for task in tests) else PENDING
    for label in dict.fromkeys(run["row"] for run in runs):
        own = [run for run in runs if run["row"] == label]
        results["rows"].append({"row": label, "parameters": own[0]["metrics"]["parameters"], **over_seeds(own, tests)})
    (args.output / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    return results


SETTINGS = {"model": Path(args.model).name, "max_length": args.max_length, "learning_rate": args.learning_rate}
earlier = read_results(args.output)
if earlier.get("settings", SETTINGS) != SETTINGS:
    parser.error(f"{args.output}: its runs have {earlier['settings']}; got {SETTINGS}; choose another --output")
runs = {(run["row"], run["seed"]): run for run in earlier["runs"]}
for seed, row, task in product(args.seeds, args.synthesizers, args.tasks):
    if (row.label, seed) not in runs:
        # Without the head, which depends on the task.
        size = AutoModel.from_pretrained(convert_row(row)).num_parameters()
        about = {"validation": NONE, "last": NONE, "metrics": dict.fromkeys(SPEEDS) | {"parameters": size}}
        runs[row.label, seed] = {"row": row.label, "seed": seed, **about, "tests": {}}
    if not runs[row.label, seed]["tests"].get(task, NONE)["scores"]:
        fine_tune(convert_row(row), task, seed, runs[row.label, seed])
        write([*runs.values()])
results = write([*runs.values()])
print(markdown(score_table(results)))
first = args.synthesizers[0].label
pairs = {f"{row.label} − {first}": [row.label, first] for row in args.synthesizers[1:]}
print(markdown(difference_table(results, pairs, score_columns(results)), "difference, 95 % interval"))
