"""Train a small Marian model with transformers alone.

python examples/train_marian.py --data FOLDER --output marian     (FOLDER holds train.en and train.de)
"""

import argparse
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from tokenizers import ByteLevelBPETokenizer, processors
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pad_sequence
from transformers import MarianConfig, MarianMTModel, PreTrainedTokenizerFast, get_inverse_sqrt_schedule

parser = argparse.ArgumentParser()
for name, default in (("data", None), ("output", None), ("source", "en"), ("target", "de"), ("steps", 3900)):
    parser.add_argument(f"--{name}", default=default, required=default is None, type=type(default or ""))
args = parser.parse_args()
special, output = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}, Path(args.output)
texts = [Path(args.data, f"train.{side}").read_text("utf-8").strip().split("\n") for side in (args.source, args.target)]
bpe = ByteLevelBPETokenizer()
bpe.train_from_iterator(texts[0] + texts[1], 6000, show_progress=False, special_tokens=[*special.values()])
bpe._tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer, model_max_length=256, **special)
tokenizer.save_pretrained(output)
pairs = list(zip(*(tokenizer(lines, truncation=True)["input_ids"] for lines in texts), strict=True))

torch.manual_seed(0)
options: Any = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0}
options |= {"d_model": 128, "max_position_embeddings": 256, "forced_eos_token_id": None, "activation_function": "relu"}
for stack in ("encoder", "decoder"):
    options |= {f"{stack}_layers": 4, f"{stack}_attention_heads": 4, f"{stack}_ffn_dim": 512}
model: Any = MarianMTModel(MarianConfig(vocab_size=len(tokenizer), scale_embedding=True, dropout=0.2, **options))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
schedule = get_inverse_sqrt_schedule(optimizer, 500)

step = epoch = 0
while step < args.steps:
    chance, groups, size = random.Random(epoch), defaultdict(list), 0
    for pair in sorted(pairs, key=lambda pair: (len(pair[1]), chance.random())):
        size += len(pair[0]) + len(pair[1])
        groups[size // 4096].append([torch.tensor(ids) for ids in pair])
    epoch += 1
    for batch in chance.sample(list(groups.values()), len(groups)):
        if (step := step + 1) > args.steps:
            break
        source, target = (pad_sequence(list(side), batch_first=True) for side in zip(*batch, strict=True))
        labels = target.masked_fill(target == 0, -100)
        logits = model.train()(source, source != 0, labels=labels).logits
        loss: Any = cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 300 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
model.save_pretrained(output)
