"""Generate text with ONNX Runtime: greedy search with a cache, without PyTorch and transformers.

synthesizer export RUN --with-cache --output model.onnx
python examples/onnx_generation.py RUN model.onnx "The concert in Vienna begins at 8:30 PM."
"""

import json
import sys
from pathlib import Path

import numpy as np
from onnxruntime import InferenceSession
from tokenizers import Tokenizer


class OnnxGenerator:
    """Translates a text, or continues it, with the exported model of a run."""

    def __init__(self, run: Path, file: Path) -> None:
        self.config = json.loads((run / "config.json").read_text(encoding="utf-8"))
        self.tokenizer = Tokenizer.from_file(str(run / "tokenizer.json"))
        files = [file]
        if self.config["is_encoder_decoder"]:
            files = [file.with_stem(f"{file.stem}-encoder"), file.with_stem(f"{file.stem}-decoder")]
        *self.encoder, self.decoder = [InferenceSession(path) for path in files]

    def __call__(self, text: str) -> str:
        tokens, fixed = self.tokenizer.encode(text).ids, {}
        for encoder in self.encoder:
            source = {"input_ids": np.array([tokens]), "attention_mask": np.ones((1, len(tokens)), np.int64)}
            fixed = dict(zip((node.name for node in encoder.get_outputs()), encoder.run(None, source), strict=True))
            fixed["encoder_attention_mask"] = source["attention_mask"]
            tokens = [self.config["decoder_start_token_id"]]
        # The cache is empty at first: (batch, heads, 0, width of a head).
        shapes = {node.name: node.shape for node in self.decoder.get_inputs() if node.name.startswith("past.")}
        past = {name: np.zeros((1, shape[1], 0, shape[3]), np.float32) for name, shape in shapes.items()}
        new, start = tokens, len(tokens)
        while len(tokens) < self.config["max_position_embeddings"] and new != [self.config["eos_token_id"]]:
            step = {"input_ids": np.array([new]), "attention_mask": np.ones((1, len(tokens)), np.int64)}
            logits, *present = self.decoder.run(None, {**step, **past, **fixed})
            past, new = dict(zip(past, present, strict=True)), [int(logits[0, -1].argmax())]
            tokens = tokens + new
        return str(self.tokenizer.decode(tokens[start:]))


if __name__ == "__main__":
    print(OnnxGenerator(Path(sys.argv[1]), Path(sys.argv[2]))(sys.argv[3]))
