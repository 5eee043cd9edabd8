"""Train a Hugging Face GPT-2 and our vanilla language model under the same conditions, and compare their perplexities.

    python benchmarks/gpt2_perplexity.py --data FOLDER --steps 5000 --set label_smoothing_factor=0 --truncate

Only the model differs. GPT-2 has the dimensions of the preset and ReLU; ours has learned positions, so it has as many
parameters. The scores are those of the best checkpoint on `valid`.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.modeling_outputs import CausalLMOutput

from synthetic_attention import SynthesizerConfig
from synthetic_attention.cli.console import say, set_up_libraries
from synthetic_attention.errors import UserError
from synthetic_attention.models.loss import IGNORED, linear_cross_entropy
from synthetic_attention.tasks.language_modeling import LanguageModeling
from synthetic_attention.training.run import start_run
from synthetic_attention.training.settings import read_settings, read_task_options

PEER = "gpt2"
COLUMNS = {"word_perplexity": "per word", "perplexity": "per token", "bits_per_byte": "bits/byte", "loss": "loss"}


class Gpt2(GPT2LMHeadModel):
    """GPT-2 with our training loss, which is smoothed and divided by the number of labels of the update."""

    accepts_loss_kwargs = True

    def __init__(self, config: GPT2Config | SynthesizerConfig) -> None:
        super().__init__(gpt2_config(config) if isinstance(config, SynthesizerConfig) else config)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        labels: Tensor,
        num_items_in_batch: Tensor | int = 1,
        smoothing: float = 0.0,
    ) -> CausalLMOutput:
        """All inputs are (B, T); a token predicts the next label."""
        hidden = self.transformer(input_ids, attention_mask=attention_mask, use_cache=False).last_hidden_state
        targets = labels.roll(-1, dims=1)
        targets[:, -1] = IGNORED
        loss = linear_cross_entropy(hidden, self.lm_head.weight, targets, smoothing)
        return CausalLMOutput(loss=loss / num_items_in_batch)


@dataclass(frozen=True)
class Gpt2LanguageModeling(LanguageModeling):
    """Language modeling with GPT-2."""

    model_class: ClassVar[str | type] = Gpt2


def gpt2_config(config: SynthesizerConfig) -> GPT2Config:
    """A GPT-2 configuration with the dimensions and dropout of `config`."""
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


def train(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Train each model in a folder of its own. Returns their metrics by name, GPT-2 first."""
    found = {}
    for name in (PEER, "vanilla"):
        settings = read_settings(
            synthesizer="vanilla",
            preset=options.preset,
            seed=options.seed,
            overrides=["position_embedding_type=learned", *options.overrides],
            on_long="truncate" if options.truncate else None,
            max_steps=options.steps,
            task=LanguageModeling,
        )
        task = Gpt2LanguageModeling if name == PEER else LanguageModeling
        say(f"{name}:")
        outcome = start_run(
            task=task.from_options(read_task_options(task, options.overrides)),
            data=options.data,
            settings=settings,
            output=options.output / name,
            overwrite=True,
            report=say,
        )
        if outcome.signal is not None:
            sys.exit(128 + outcome.signal)
        found[name] = outcome.metrics
    return found


def table(found: dict[str, dict[str, Any]]) -> str:
    """The table in Markdown."""
    header = ["model", "params", "steps", "best at", *COLUMNS.values(), f"per word ÷ {PEER}", "tokens/s", "minutes"]
    lines = [header, ["---", *["---:"] * (len(header) - 1)]]
    for name, metrics in found.items():
        best, speed = metrics["best"], metrics["tokens_per_second"]
        cells = [f"{count:,}" for count in (metrics["parameters"], metrics["steps"], best["step"])]
        cells += [f"{best[score]:.3f}" for score in COLUMNS]
        ratio = best["word_perplexity"] / found[PEER]["best"]["word_perplexity"]
        lines.append([name, *cells, f"{ratio:.4f}", f"{speed:,.0f}", f"{metrics['minutes']:.0f}"])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main(arguments: list[str] | None = None) -> None:
    """Train, score, print the table, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="as for synthesizer train language-modeling")
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--steps", type=int, help="default: the preset's")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--truncate", action="store_true", help="cut sentences over the maximum length")
    parser.add_argument("--output", type=Path, required=True, help="folder for the runs and results.json")
    options = parser.parse_args(arguments)
    path: Path = options.output / "results.json"
    if path.exists():
        say(f"{path}: the results of an earlier run")
        print(json.loads(path.read_text(encoding="utf-8"))["markdown"])
        return
    set_up_libraries()
    try:
        found = train(options)
    except UserError as error:
        sys.exit(f"Error: {error}")
    print(table(found))
    path.write_text(json.dumps({"results": found, "markdown": table(found)}, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
