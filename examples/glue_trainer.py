"""Fine-tune converted encoders on tasks of GLUE with transformers' Trainer, two epochs each, and compare their scores.

python examples/glue_trainer.py FOLDER … --data glue --output results.json    (repeated, it continues)

A FOLDER is what `synthesizer convert` makes of an encoder without a head; differences are those to the first one.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any, cast

import pandas as pd
from scipy.stats import ttest_ind
from transformers import AutoTokenizer, DataCollatorWithPadding, Trainer, TrainingArguments, set_seed

from synthesizer_lab.benchmark.harness import about
from synthesizer_lab.data.glue import SUITES, read_file, task_files
from synthesizer_lab.metrics.glue import task_scores
from synthetic_attention import SynthesizerForSequenceClassification

parser = argparse.ArgumentParser()
parser.add_argument("starts", nargs="+", type=Path, metavar="FOLDER")
parser.add_argument("--data", type=Path, required=True, help="the folder of the official files, as CoLA/train.tsv")
parser.add_argument("--tasks", nargs="+", default=["cola", "mrpc", "rte", "stsb"], choices=[*SUITES["glue"]])
parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
parser.add_argument("--learning-rate", type=float, default=5e-5)
parser.add_argument("--output", type=Path, required=True, help="JSON file of all scores")
args = parser.parse_args()
if len({start.name for start in args.starts}) < len(args.starts):
    parser.error("two folders have the same name, which is that of a row")


def read(name: str, split: str, tokenizer: Any) -> list[dict[str, Any]]:
    """The encoded examples of a split, with their labels."""
    task = SUITES["glue"][name]
    examples = [each for path in task_files(args.data, task, split).values() for each in read_file(path, task) if each]
    if not examples:
        parser.error(f"{args.data}: no {split} file of {task.folder}")
    texts = ([each.texts[column] for each in examples] for column in task.texts)
    columns: dict[str, Any] = dict(tokenizer(*texts, truncation=True, max_length=128))
    columns["labels"] = [each.label for each in examples]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def fine_tune(start: Path, name: str, seed: int) -> dict[str, float]:
    """The official scores on the validation set."""
    tokenizer, classes = AutoTokenizer.from_pretrained(start), len(SUITES["glue"][name].labels)
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
    return task_scores(name, guesses.tolist(), [row["labels"] for row in valid])


results: Any = json.loads(args.output.read_text()) if args.output.exists() else {"about": about(), "runs": []}
done = {(run["row"], run["task"], run["seed"]) for run in results["runs"]}
for task in args.tasks:
    for seed in args.seeds:
        for start in args.starts:
            if (start.name, task, seed) not in done:
                run = {"row": start.name, "task": task, "seed": seed, "scores": fine_tune(start, task, seed)}
                results["runs"].append(run)
                args.output.write_text(json.dumps(results, indent=1) + "\n")

print("| task | row | seeds | mean ± sd | difference, 95 % interval |\n|---|---|---:|---:|---:|")
table = pd.DataFrame([{**run, **run["scores"]} for run in results["runs"]])
for task in args.tasks:
    for metric in SUITES["glue"][task].metrics:
        by_row = table[table.task == task].groupby("row")[metric]
        first = by_row.get_group(args.starts[0].name)
        for start in args.starts:
            own = by_row.get_group(start.name)
            low, high = ttest_ind(own, first, equal_var=False).confidence_interval()
            interval = f"{own.mean() - first.mean():+.1f} [{low:+.1f}, {high:+.1f}]"
            print(f"| {task} {metric} | {start.name} | {len(own)} | {own.mean():.1f} ± {own.std():.1f} | {interval} |")
