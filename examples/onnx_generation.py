"""Greedy search with ONNX Runtime, without PyTorch and transformers; a causal model is one file, model.onnx.

synthesizer export RUN --with-cache --output model.onnx
python examples/onnx_generation.py RUN "The concert in Vienna begins at 8:30 PM." model-decoder.onnx model-encoder.onnx
"""

import json
import sys
from pathlib import Path

import numpy as np
from onnxruntime import InferenceSession
from tokenizers import Tokenizer


class OnnxGenerator:
    def __init__(self, run: Path, decoder: Path, encoder: Path | None = None) -> None:
        self.config = json.loads((run / "config.json").read_text(encoding="utf-8"))
        self.tokenizer = Tokenizer.from_file(str(run / "tokenizer.json"))
        self.decoder, self.encoder = InferenceSession(decoder), InferenceSession(encoder) if encoder else None

    def __call__(self, text: str, max_new_tokens: int = 128) -> str:
        tokens, inputs = self.tokenizer.encode(text).ids, {}
        if self.encoder:
            source = {"input_ids": np.array([tokens]), "attention_mask": np.ones((1, len(tokens)), np.int64)}
            names = [output.name for output in self.encoder.get_outputs()]
            inputs = dict(zip(names, self.encoder.run(None, source), strict=True))
            inputs["encoder_attention_mask"] = source["attention_mask"]
            tokens = [self.config["decoder_start_token_id"]]
        # The cache is empty at first: (batch, heads, 0, width of a head).
        past = {node.name: node.shape for node in self.decoder.get_inputs() if node.name.startswith("past.")}
        inputs |= {name: np.zeros((1, shape[1], 0, shape[3]), np.float32) for name, shape in past.items()}
        ends, new, output = np.atleast_1d(self.config["eos_token_id"]), tokens, list[int]()
        for length in range(len(tokens), min(len(tokens) + max_new_tokens, self.config["max_position_embeddings"])):
            inputs |= {"input_ids": np.array([new]), "attention_mask": np.ones((1, length), np.int64)}
            logits, *present = self.decoder.run(None, inputs)
            inputs |= zip(past, present, strict=True)
            output += (new := [int(logits[0, -1].argmax())])
            if new[0] in ends:
                break
        return str(self.tokenizer.decode(output))


if __name__ == "__main__":
    print(OnnxGenerator(Path(sys.argv[1]), *map(Path, sys.argv[3:]))(sys.argv[2]))
