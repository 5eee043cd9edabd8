"""From text files to translations in half a minute of training: what `make demo` runs.

    python benchmarks/demo.py [FOLDER]

Makes a toy parallel corpus in FOLDER (default: demo), trains random+vanilla on it, scores the run, and translates.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from synthetic_attention.tasks.toy import write_toy_corpus

# Small enough for any machine: numbers in words need no more.
_SETTINGS = (
    *("d_model=64", "num_layers=2", "vocab_size=400", "dropout_rate=0.1"),
    *("batch_tokens=1024", "warmup_steps=100", "eval_interval=200", "log_interval=100"),
)


def synthesizer(*arguments: object) -> None:
    """Run the command as a user would, and show it."""
    words = [str(argument) for argument in arguments]
    print("\n$ synthesizer", *words, flush=True)
    subprocess.run([sys.executable, "-m", "synthetic_attention.cli", *words], check=True)


def main() -> None:
    """The demo."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "demo")
    data, run = folder / "data", folder / "run"
    write_toy_corpus(data, train=2000, held_out=100)
    settings = [word for setting in _SETTINGS for word in ("--set", setting)]
    languages = ("--source", "en", "--target", "de")
    synthesizer(
        *("train", "translation", "--data", data, *languages, "--synthesizer", "random+vanilla", "--preset", "tiny"),
        *("--output", run, "--minutes", 0.5, "--overwrite", *settings),
    )
    synthesizer("evaluate", run, "--data", data, "--split", "test")
    synthesizer("generate", run, "forty two plus seventeen", "ninety nine minus eleven plus three")


if __name__ == "__main__":
    main()
