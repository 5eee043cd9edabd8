# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # From a trained Transformer to synthesized heads
#
# Train a small translation model with dot-product attention, see what its heads depend on, replace heads by learned
# matrices that look at no token, and export the result. A few minutes on a CPU; needs the extras `train` and `export`.

# %%
import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

from synthesizer_lab.data.phrases import write_phrases

FOLDER = Path(tempfile.mkdtemp())
TEXT = "The concert in Vienna begins at 8:30 PM."
plt.rcParams["figure.dpi"] = 72


def synthesizer(command: str) -> str:
    """What the command `synthesizer` prints."""
    print(f"$ synthesizer {command}")
    words = [sys.executable, "-m", "synthesizer_lab", *shlex.split(command)]
    done = subprocess.run(words, cwd=FOLDER, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise RuntimeError(done.stdout)
    return done.stdout


# %% [markdown]
# ## Train
#
# English phrases and their German translations, which the package makes itself. For your own text put `train.en`,
# `train.de`, `valid.en`, … into a folder.

# %%
write_phrases(FOLDER / "data")
for side in ("en", "de"):
    print((FOLDER / "data" / f"train.{side}").read_text(encoding="utf-8").splitlines()[0])
synthesizer(
    "train translation --data data --source en --target de --synthesizer vanilla --preset demo --steps 600 "
    "--set eval_steps=600 --output vanilla"
)
print(synthesizer(f'generate vanilla "{TEXT}"'))

# %% [markdown]
# ## Look at the heads
#
# `inspect` measures how much of each head's attention the *position* of a token explains (what a random synthesizer can
# learn) and how much the *token itself* explains (what a dense one can). 1 is all, 0 no better than uniform attention.

# %%
synthesizer(f'inspect vanilla "{TEXT}" --output pictures')
synthesizer("inspect vanilla --sample 64 --output numbers")
found = json.loads((FOLDER / "numbers" / "inspect.json").read_text(encoding="utf-8"))
explained, names = [], []
for layer in found["explained"]:
    for number, head in enumerate(layer["heads"], start=1):
        explained.append(head)
        names.append(f"{layer['stack'][:3]} {layer['layer']}.{number}")
figure, axis = plt.subplots(figsize=(11, 3.2), layout="constrained")
for shift, key in ((-0.2, "explained_by_random"), (0.2, "explained_by_dense")):
    axis.bar([i + shift for i in range(len(names))], [max(0.0, head[key]) for head in explained], 0.4, label=key)
axis.set_xticks(range(len(names)), names, rotation=90)
axis.set(ylim=(0, 1), ylabel="share explained")
axis.legend()
plt.show()

# %% [markdown]
# The attention of the encoder on one sentence:

# %%
figure, axis = plt.subplots(figsize=(11, 6), layout="constrained")
axis.imshow(plt.imread(FOLDER / "pictures" / "text1-encoder.png"))
axis.axis("off")
plt.show()

# %% [markdown]
# ## Replace heads
#
# `convert --calibrate` fits a matrix R to the mean log attention of each head. `--budget 0.5` replaces the half of the
# heads that raise the loss least. `--distill-steps` then trains the new parameters alone. All heads are replaced next,
# and trained a little.

# %%
convert = "convert vanilla --synthesizer random --calibrate data"
synthesizer(f"{convert} --examples 300 --budget 0.5 --distill-steps 50 --output half")
synthesizer(f"{convert} --examples 300 --output all")
log = synthesizer(
    "train translation --data data --source en --target de --from all --steps 200 --set eval_steps=200 "
    "--set warmup_steps=50 --output all-trained"
)

# %% [markdown]
# ## Compare

# %%
RUNS = ("vanilla", "half", "all", "all-trained")
results = [synthesizer(f"evaluate {run} --split test --num-beams 1 --json") for run in RUNS]
print(f"\n{'':16}{'heads in encoder | decoder':36}{'BLEU':>6}{'exact %':>9}")
for run, result in zip(RUNS, results, strict=True):
    scores = json.loads(result.splitlines()[-1])
    name = json.loads((FOLDER / run / "config.json").read_text(encoding="utf-8"))["synthesizer"]
    sides = [name[side] for side in ("encoder", "decoder")] if isinstance(name, dict) else [name]
    layers = " | ".join(", ".join(side) if isinstance(side, list) else side for side in sides)
    print(f"{run:16}{layers:36}{scores['bleu']:>6.1f}{scores['exact_match']:>9.1f}")

# %% [markdown]
# One training, one seed: a difference of a point means nothing, and `all-trained` has 200 steps more than `vanilla`.
# Synthesized heads need no keys, so the cache of a decoder with random heads alone is half as large; `report.json` of
# each conversion has its bytes and its speed.
# [Converting](../converting.md) has figures on real text.
#
# ## Export
#
# ONNX with standard operators only; the difference from PyTorch is measured with ONNX Runtime.

# %%
print(synthesizer("export all-trained --format onnx --with-cache --output model.onnx"))
