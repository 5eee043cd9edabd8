"""Train four models on example phrases, score and compare them: what `make demo` runs, in less than four minutes.

    python benchmarks/demo.py [FOLDER] [--steps 600]

The models differ only in their self-attention and are trained for the same number of steps. Everything is written to
FOLDER (default: demo); when repeated after an interruption, the demo continues.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from synthesizer_lab.cli import main as synthesizer
from synthesizer_lab.data.phrases import write_phrases

SYNTHESIZERS = {
    "vanilla": "softmax(QKᵀ): compares every pair of tokens",
    "random": "a learned matrix, the same for all sentences: looks at no token",
    "dense": "each token predicts its own weights from itself alone",
    "random+vanilla": "a mixture of both with learned weights",
}
SPLITS = {"test": "known sentences, new combinations", "test_templates": "new sentences of known parts"}
EXAMPLE = "The concert in Vienna begins at 8:30 PM."
console = Console(highlight=False)


def main() -> None:
    """Parse the arguments and run the demo."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("demo"), help="output folder (default: demo)")
    parser.add_argument("--steps", type=int, default=600, help="training steps of each model (default: %(default)s)")
    options = parser.parse_args()
    started = time.monotonic()
    data, output = options.folder / "data", options.folder / "comparison"
    console.rule("[bold]English phrases and their German translations", align="left")
    write_phrases(data)
    for english, german in zip(*(read_lines(data / f"train.{side}")[:3] for side in ("en", "de")), strict=True):
        console.print(f"  {english}\n    [dim]{german}[/]")
    console.rule(f"[bold]Four models, {options.steps:,} steps each", align="left")
    for name, idea in SYNTHESIZERS.items():
        console.print(f"  [bold]{name:15}[/]{idea}")
    results = run_comparison(data, output, options.steps)
    print_results(results, data, output)
    best = max(results["runs"], key=lambda run: run["tests"]["test_templates"]["scores"]["exact_match"])
    console.rule(
        f"[bold]{(time.monotonic() - started) / 60:.1f} minutes; everything is in {options.folder}", align="left"
    )
    console.print("Next (the models know only such sentences):\n")
    program = os.path.relpath(Path(sys.executable).with_name("synthesizer"))
    for command in ("generate", "inspect"):
        console.print(f'$ {program} {command} {output / best["folder"]} "{EXAMPLE}"', soft_wrap=True)
    console.print("\nOther text: docs/translation.md. Which synthesizer: docs/choosing.md.")
    console.print(f"The comparison as a page: {output / 'index.html'}", soft_wrap=True)


def run_comparison(data: Path, output: Path, steps: int) -> dict[str, Any]:
    """Run `synthesizer compare`; returns the content of results.json."""
    # Validation is for longer trainings: the last checkpoint is the best one here.
    sets = f"--steps {steps} --set eval_steps={steps} --set logging_steps=100 --num-beams 1"
    words = f"compare translation --source en --target de --preset demo {sets}".split()
    words += [f"--split={split}" for split in SPLITS] + ["--synthesizers", ",".join(SYNTHESIZERS)]
    words += ["--data", str(data), "--output", str(output)]
    console.print(Text(f"\n$ synthesizer {shlex.join(words)}", style="cyan"))
    # The runs and the page record this command.
    sys.argv = ["synthesizer", *words]
    try:
        synthesizer(words)
    except SystemExit as ended:
        # The command has printed the reason.
        if ended.code:
            raise
    return json.loads((output / "results.json").read_text(encoding="utf-8"))


def print_results(results: dict[str, Any], data: Path, output: Path) -> None:
    """Print how many translations are right, and of each split the first phrases and the first with a mistake."""
    console.rule("[bold]Translations without any mistake", align="left")
    table = Table("synthesizer", box=box.SIMPLE_HEAD)
    for name in SPLITS.values():
        table.add_column(name, justify="right")
    for run in results["runs"]:
        table.add_row(run["row"], *(f"{run['tests'][split]['scores']['exact_match']:.0f} %" for split in SPLITS))
    console.print(table)
    for split, name in SPLITS.items():
        console.print(f"[bold]{name.capitalize()}: the first, and the first with a mistake[/]\n")
        files = [data / f"{split}.en", data / f"{split}.de"]
        files += [output / run["folder"] / run["tests"][split]["predictions"] for run in results["runs"]]
        rows = list(zip(*map(read_lines, files), strict=False))
        wrong = next((row for row in rows if len({*row[1:]}) > 1), rows[1])
        for english, german, *outputs in dict.fromkeys((rows[0], wrong)):
            console.print(Text(f"  {english}").append(f"\n  {german}", "dim"))
            for run, text in zip(results["runs"], outputs, strict=True):
                mark, colour = ("✓", "green") if text == german else ("✗", "red")
                console.print(Text(f"  {mark} {text}", colour).append(f"  {run['row']}", "dim"))
            console.print()


def read_lines(path: Path) -> list[str]:
    """The lines of a text file; outputs may contain other separators that `splitlines` would split at."""
    return path.read_text(encoding="utf-8").split("\n")


if __name__ == "__main__":
    main()
