"""What each of several processes does in `test_sharding.py`: arguments CORPUS FOLDER."""

import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from safetensors.torch import save_file
from transformers import TrainerCallback

from synthesizer_lab.tasks.language_modeling import LanguageModeling
from synthesizer_lab.tasks.translation import Translation
from synthesizer_lab.training.run import resume_run
from synthesizer_lab.training.run_folder import PretrainedRun
from synthesizer_lab.training.sharding import gather_weights
from training.conftest import small_settings
from training.runs import silent, start

OPTIONS = ("dropout_rate=0", "logging_steps=1", "num_layers=2", "eval_batch_tokens=100")
CHECKPOINTING = (*OPTIONS, "max_steps=3", "gradient_checkpointing=true")
SYNTHESIZER = "random+fixed_random+vanilla"
LANGUAGE_MODEL = LanguageModeling(train_files="train.en", valid_files="valid.en")


class Start(TrainerCallback):
    """Writes the weights before the first step."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if weights := gather_weights(model):
            save_file(weights, self.folder / f"{self.name}.safetensors")


def main(corpus: Path, folder: Path) -> None:
    torch.set_num_threads(1)
    sharded = small_settings(*OPTIONS, "max_steps=4", "sharding=fsdp", "average_checkpoints=2")
    start(corpus, folder / "adamw", sharded, callbacks=[Start(folder, "new")])
    resume_run(folder / "adamw", max_steps=8, report=silent)
    checkpointing = small_settings(*CHECKPOINTING, "sharding=fsdp", synthesizer=SYNTHESIZER)
    start(corpus, folder / "checkpointing", checkpointing)
    pretrained = PretrainedRun.open(folder / "checkpointing", Translation)
    start(corpus, folder / "from", checkpointing, pretrained=pretrained, callbacks=[Start(folder, "from")])
    start(
        corpus,
        folder / "lm",
        small_settings(*OPTIONS, "max_steps=2", "bf16=true", "sharding=fsdp"),
        task=LANGUAGE_MODEL,
    )
    PartialState().destroy_process_group()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
