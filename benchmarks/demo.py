"""Four ways to attend, trained under one budget on a corpus made on the spot: what `make demo` runs.

    python benchmarks/demo.py [FOLDER] [--minutes 0.9]

All is done by the commands that are shown, and stays in FOLDER (default: demo). Stopped and called again, it goes on
with what is left.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from babel.core import get_cldr_version
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from synthetic_attention.data.cldr import write_cldr_corpus

_VARIANTS = {
    "vanilla": "softmax of query · key: every pair of tokens is compared",
    "random": "one learned matrix for all sentences: no token is looked at",
    "dense": "each token writes its own weights, without looking at the others",
    "random+vanilla": "the first two together, mixed by learned weights",
}
_TESTS = {"test": "new values", "test_templates": "new sentences"}
_SHOWN = 4
console = Console(highlight=False)


def main() -> None:
    """The demo."""
    parser = argparse.ArgumentParser(description="Train four models on a corpus made on the spot, and compare them.")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("demo"), help="where everything is written")
    parser.add_argument("--minutes", type=float, default=0.9, help="training of each model (default: %(default)s)")
    options = parser.parse_args()
    started = time.monotonic()
    folder: Path = options.folder
    make_data(folder / "data")
    results = compare(folder, options.minutes)
    show_table(results)
    examples = {split: read_examples(folder, results, split) for split in _TESTS}
    for split, rows in examples.items():
        show_translations(split, rows)
    draw(folder, results, examples["test"][0][0])
    say_what_it_shows(results)
    console.print(
        f"\n{(time.monotonic() - started) / 60:.1f} minutes. Everything is in {folder}; try a phrase of your own:"
    )
    best = folder / "comparison" / best_row(results, "test")["folder"]
    console.print(f'$ synthesizer generate {best} "The concert in Vienna begins at 8:30 PM."')


def make_data(folder: Path) -> None:
    """Write the corpus, and show some of it."""
    heading("A corpus, made on the spot")
    write_cldr_corpus(folder)
    lines = {name: (folder / name).read_text("utf-8").splitlines() for name in ("train.en", "train.de")}
    console.print(
        f"{len(lines['train.en']):,} English phrases and their German translations: templates with dates, times, "
        f"amounts and names from the Unicode locale data (CLDR {get_cldr_version()}). Some of them:\n"
    )
    for english, german in list(zip(*lines.values(), strict=True))[:_SHOWN]:
        console.print(f"  {english}\n    [dim]{german}[/]")


def compare(folder: Path, minutes: float) -> dict[str, Any]:
    """Train and score all variants; the content of results.json."""
    heading("Four models, one budget")
    for name, idea in _VARIANTS.items():
        console.print(f"  [bold]{name:15}[/]{idea}")
    console.print(f"\nThey differ in nothing but self-attention. Each has {minutes:g} minutes of training.\n")
    output = synthesizer(
        *("compare", "translation", "--data", folder / "data", "--source", "en", "--target", "de"),
        *("--preset", "demo", "--set", "log_interval=200", "--synthesizers", ",".join(_VARIANTS)),
        *("--minutes", f"{minutes:g}", "--beams", 1),
        *(word for split in _TESTS for word in ("--split", split)),
        *("--output", folder / "comparison", "--json"),
    )
    return json.loads(output)


def show_table(results: dict[str, Any]) -> None:
    """Scores on both tests, parameters, speed and time of each variant."""
    heading("Results")
    # It has to fit into 80 columns.
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("synthesizer", vertical="bottom", no_wrap=True)
    for meaning in _TESTS.values():
        table.add_column(meaning.replace(" ", "\n") + "\nBLEU", justify="right")
        table.add_column("exact %", justify="right", vertical="bottom")
    for name in ("params", "tokens/s", "seconds"):
        table.add_column(name, justify="right", vertical="bottom", no_wrap=True)
    for run in results["runs"]:
        scores = [run["tests"][split]["scores"] for split in _TESTS]
        metrics = run["metrics"]
        table.add_row(
            run["row"],
            *(f"{score[name]:.1f}" for score in scores for name in ("bleu", "exact_match")),
            f"{metrics['parameters'] / 1e6:.2f} M",
            f"{metrics['tokens_per_second']:,.0f}",
            f"{60 * metrics['minutes']:.0f}",
        )
    console.print(table)
    console.print(
        "[bold]new values[/]: sentences of the training text with other values in them. "
        "[bold]new sentences[/]: known words, put together in a way that training never showed.\n"
        "exact: the share of translations that are right to the last character. seconds: training alone. "
        "One seed each: small differences may be chance."
    )


Example = tuple[str, str, dict[str, str]]


def read_examples(folder: Path, results: dict[str, Any], split: str) -> list[Example]:
    """The first phrases of a split: source, reference, and what each variant made of it."""
    source, reference = ((folder / "data" / f"{split}.{side}").read_text("utf-8").splitlines() for side in ("en", "de"))
    outputs = {}
    for run in results["runs"]:
        home = folder / "comparison" / run["folder"] / "evaluation"
        outputs[run["row"]] = find_predictions(home, split, results).read_text("utf-8").splitlines()
    return [
        (source[row], reference[row], {name: lines[row] for name, lines in outputs.items()}) for row in range(_SHOWN)
    ]


def find_predictions(home: Path, split: str, results: dict[str, Any]) -> Path:
    """The predictions that the scores of a split are of; there may be others, of another search or other data."""
    wanted = {**results["search"], "fingerprint": results["tests"][split], "dtype": "float32"}
    for path in sorted(home.glob(f"{split}.*.json")):
        about = json.loads(path.read_text("utf-8"))
        if all(about.get(name) == value for name, value in wanted.items()):
            return path.with_suffix(".de")
    sys.exit(f"Error: {home}: no predictions of {split} with {results['search']}; remove {home.parent}")


def show_translations(split: str, examples: list[Example]) -> None:
    """What each variant wrote, side by side, and where it is right."""
    heading(f"The first phrases of the test with {_TESTS[split]}")
    for source, reference, outputs in examples:
        console.print(Text(source, style="bold"))
        console.print(Text(f"  {'reference':15}{reference}", style="dim"))
        for name, output in outputs.items():
            right = output == reference
            console.print(Text(f"{'✓' if right else '✗'} {name:15}{output}", style="green" if right else "red"))
        console.print()


def draw(folder: Path, results: dict[str, Any], phrase: str) -> None:
    """Heat maps of every variant for one phrase."""
    heading("Where each model looks")
    console.print("The attention weights of every layer and head for the first phrase, as pictures in a page:\n")
    for run in results["runs"]:
        output = folder / "attention" / Path(run["folder"]).parent
        synthesizer("inspect", folder / "comparison" / run["folder"], phrase, "--output", output)


def say_what_it_shows(results: dict[str, Any]) -> None:
    """The outcome in words, from the numbers."""
    heading("What it shows")
    for split, meaning in _TESTS.items():
        run = best_row(results, split)
        score = run["tests"][split]["scores"]["exact_match"]
        console.print(f"On {meaning} the best is [bold]{run['row']}[/], with {score:.0f} % exactly right.")


def best_row(results: dict[str, Any], split: str) -> dict[str, Any]:
    """The run with the most exact translations of a split."""
    return max(results["runs"], key=lambda run: run["tests"][split]["scores"]["exact_match"])


def heading(text: str) -> None:
    """A line that says what comes."""
    console.print()
    console.rule(f"[bold]{text}[/]", align="left")


def synthesizer(*arguments: object) -> str:
    """Run the command as a user would, and show it; what it prints."""
    words = [str(argument) for argument in arguments]
    console.print(Text(f"$ synthesizer {shlex.join(words)}", style="cyan"))
    command = [sys.executable, "-m", "synthetic_attention.cli", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8") as process:
        try:
            output, _ = process.communicate()
        except KeyboardInterrupt:
            # The command got the signal too, and saves what it has: subprocess.run would kill it.
            process.communicate()
            raise
    if process.returncode:
        # It has said why.
        sys.exit(process.returncode)
    return output


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
