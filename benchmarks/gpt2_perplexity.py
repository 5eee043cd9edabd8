"""Perplexities of a Hugging Face GPT-2 and of our language models, trained one after the other under one budget.

    python benchmarks/gpt2_perplexity.py --data FOLDER --steps 5000 --set label_smoothing=0 --truncate

Task, tokenizer, batches, trainer, optimizer, schedule, seed, dropout, label smoothing, loss and scoring are the same
code for all; only the model is another. The GPT-2 has the dimensions of the preset, tied embeddings, and ReLU as ours;
ours has learned positions as GPT-2, and with `vanilla` as many parameters. Both keep the initial weights of their own.
Scores are those of the best checkpoint on `valid`. Without --data it is the text of Python's standard library.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.modeling_outputs import CausalLMOutput

from synthetic_attention import SynthesizerConfig
from synthetic_attention.cli.quiet import quiet_libraries
from synthetic_attention.models.loss import IGNORED, linear_cross_entropy
from synthetic_attention.tasks import UserError
from synthetic_attention.tasks.language_modeling import LanguageModeling
from synthetic_attention.training.preparation import Data
from synthetic_attention.training.run_folder import RunFolder
from synthetic_attention.training.session import start_run
from synthetic_attention.training.settings import Settings, read_settings, read_task_options

PEER = "gpt2"
COLUMNS = {"word_perplexity": "per word", "perplexity": "per token", "bits_per_byte": "bits/byte", "loss": "loss"}


class Gpt2(GPT2LMHeadModel):
    """GPT-2 with our training loss: label-smoothed, and divided by the labels of the whole update."""

    accepts_loss_kwargs = True

    def __init__(self, config: GPT2Config, label_smoothing: float = 0.0) -> None:
        super().__init__(config)
        self.label_smoothing = label_smoothing

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor, num_items_in_batch: Tensor | int = 1
    ) -> CausalLMOutput:
        """input_ids, attention_mask and labels (B, T): the prediction after a token is scored with the next label."""
        hidden = self.transformer(input_ids, attention_mask=attention_mask, use_cache=False).last_hidden_state
        following = torch.full_like(labels, IGNORED)
        following[:, :-1] = labels[:, 1:]
        smoothing = self.label_smoothing if self.training else 0.0
        loss = linear_cross_entropy(hidden, self.lm_head.weight, following, smoothing)
        return CausalLMOutput(loss=loss / num_items_in_batch)


@dataclass(frozen=True)
class WithGpt2(LanguageModeling):
    """The same task with another model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.packed:
            raise UserError("got packed=true; GPT-2 cannot keep the sentences of a row apart: leave it out")

    def build(self, config: SynthesizerConfig) -> Gpt2:
        """A GPT-2 of the dimensions of `config`."""
        return Gpt2(gpt2_config(config), float(config.label_smoothing))


def gpt2_config(config: SynthesizerConfig) -> GPT2Config:
    """GPT-2 of the same dimensions and dropout."""
    return GPT2Config(
        vocab_size=config.vocab_size,
        n_positions=config.max_position_embeddings,
        n_embd=config.d_model,
        n_layer=config.num_layers,
        n_head=config.num_heads,
        n_inner=config.d_ff,
        activation_function="relu",
        resid_pdrop=config.dropout_rate,
        embd_pdrop=config.dropout_rate,
        attn_pdrop=config.attention_dropout_rate,
        layer_norm_epsilon=config.layer_norm_epsilon,
        tie_word_embeddings=config.tie_word_embeddings,
        pad_token_id=config.pad_token_id,
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
    )


def train(options: argparse.Namespace, home: Path) -> dict[str, dict[str, Any]]:
    """The metrics of each run, by the name of the model; GPT-2 first."""
    task_options = read_task_options(LanguageModeling, options.overrides)
    data = options.data
    if data is None:
        data, task_options = LanguageModeling.default_data(), {**LanguageModeling.default_options(), **task_options}
    found = {}
    for name in (PEER, *options.synthesizers.split(",")):
        task = (WithGpt2 if name == PEER else LanguageModeling).from_options(task_options)
        settings = read_settings(
            synthesizer="vanilla" if name == PEER else name,
            preset=options.preset,
            seed=options.seed,
            overrides=["position_embedding_type=learned", *options.overrides],
            long="truncate" if options.truncate else None,
            steps=options.steps,
            task=LanguageModeling,
        )
        print(f"{name}:", file=sys.stderr)
        begun = begun_with(home / name, task, data, settings)
        if begun and not options.overwrite and RunFolder(home / name).read_metrics() is not None:
            found[name] = result(home / name)
            continue
        outcome = start_run(
            task=task,
            data=data,
            settings=settings,
            output=home / name,
            overwrite=options.overwrite or begun,
            device=options.device,
            report=lambda line: print(line, file=sys.stderr),
        )
        if outcome.signal is not None:
            sys.exit(128 + outcome.signal)
        found[name] = result(home / name)
    return found


def begun_with(folder: Path, task: LanguageModeling, data: Path, settings: Settings) -> bool:
    """Whether the folder has such a run already: it is taken if it is finished, and else made anew."""
    if not (folder / "run.yaml").exists():
        return False
    info = RunFolder(folder).read_info()
    same_data = info["fingerprints"] == Data.read(task, data).fingerprints()
    return bool(info["settings"] == settings.to_dict() and same_data)


def result(folder: Path) -> dict[str, Any]:
    """What came of a run, with when and by what it was made."""
    run = RunFolder(folder)
    metrics, info = run.read_metrics(), run.read_info()
    assert metrics is not None
    ended = datetime.fromtimestamp((folder / "metrics.json").stat().st_mtime, UTC)
    return {
        **metrics,
        "date": ended.isoformat(timespec="seconds"),
        **{key: info[key] for key in ("commands", "versions")},
    }


def cells(found: dict[str, dict[str, Any]]) -> list[list[str]]:
    """The table of the results, its header first."""
    header = ["model", "params", "steps", "best at", *COLUMNS.values(), f"per word ÷ {PEER}", "tokens/s", "minutes"]
    rows = [
        [
            name,
            f"{metrics['parameters']:,}",
            f"{metrics['steps']:,}",
            f"{metrics['best']['step']:,}",
            *(f"{metrics['best'][score]:.3f}" for score in COLUMNS),
            f"{metrics['best']['word_perplexity'] / found[PEER]['best']['word_perplexity']:.4f}",
            f"{metrics['tokens_per_second']:,.0f}",
            f"{metrics['minutes']:.0f}",
        ]
        for name, metrics in found.items()
    ]
    return [header, *rows]


def table(found: dict[str, dict[str, Any]]) -> Table:
    """The results for a terminal."""
    header, *rows = cells(found)
    out = Table(title="validation scores of the best checkpoint")
    for column in header:
        out.add_column(column, justify="left" if column == "model" else "right", no_wrap=True)
    for row in rows:
        out.add_row(*row)
    return out


def report(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The results with all that is needed to repeat them, and as a table in Markdown."""
    header, *rows = cells(found)
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return {"results": found, "markdown": "".join(f"| {' | '.join(line)} |\n" for line in lines)}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="as for synthesizer train language-modeling")
    parser.add_argument("--synthesizers", default="vanilla", help="ours, separated by commas")
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--steps", type=int, help="(default: the preset's)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--truncate", action="store_true", help="cut sentences over the maximum length")
    parser.add_argument("--threads", type=int, help="of torch")
    parser.add_argument("--device")
    parser.add_argument("--output", type=Path, help="keep runs and results in this folder, and take what is there")
    parser.add_argument("--overwrite", action="store_true", help="replace the runs that are there")
    parser.add_argument("--json", type=Path, help="write the results here too")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Train, score, print, write."""
    options = parse(arguments)
    quiet_libraries()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.json and not options.json.absolute().parent.is_dir():
        sys.exit(f"Error: {options.json.parent}: no such folder for --json")
    try:
        with tempfile.TemporaryDirectory() as temporary:
            found = train(options, options.output or Path(temporary))
    except UserError as error:
        sys.exit(f"Error: {error}")
    terminal = Console()
    # Where it goes to a file, the table is as wide as it needs.
    (terminal if terminal.is_terminal else Console(width=200)).print(table(found))
    for path in filter(None, (options.json, options.output and options.output / "results.json")):
        path.write_text(json.dumps(report(found), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
