"""Size, speed and BLEU of a translation run in PyTorch, torchao and ONNX Runtime: the table of docs/serving.md.

python benchmarks/serving.py RUN
"""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from onnxruntime.quantization import quantize_dynamic
from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig, quantize_
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from synthesizer_lab.benchmark.harness import time_turns
from synthesizer_lab.training.run_folder import RunFolder, data_path
from synthetic_attention import export_model, generate

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from onnx_generation import OnnxGenerator

# Bytes of the weights, and how to translate.
Served = tuple[int, Callable[[list[str]], list[str]]]
TIMED, BATCH, TURNS, SCORED = 16, 32, 7, 320


def translate(model: Any, tokenizer: Any, texts: list[str]) -> list[str]:
    """Greedy search in one batch."""
    inputs = tokenizer(texts, padding=True, return_tensors="pt", return_token_type_ids=False)
    with torch.no_grad():
        return list(tokenizer.batch_decode(generate(model, **inputs, num_beams=1), skip_special_tokens=True))


def pytorch(run: Path, folder: Path) -> dict[str, Served]:
    """The model in float32 and int8; also writes the float32 files for `onnx`."""
    tokenizer, model = AutoTokenizer.from_pretrained(run), AutoModelForSeq2SeqLM.from_pretrained(run)
    models = {"PyTorch": model}
    for config in (Int8WeightOnlyConfig(), Int8DynamicActivationInt8WeightConfig()):
        models[name := f"torchao {type(config).__name__}"] = copy.deepcopy(model)
        quantize_(models[name], config)
    found: dict[str, Served] = {}
    for name, each in models.items():
        torch.save(each.state_dict(), folder / "weights")
        found[name] = (folder / "weights").stat().st_size, partial(translate, each, tokenizer)
    export_model(model, folder / "float32.onnx", with_cache=True)
    return found


def onnx(run: Path, folder: Path) -> dict[str, Served]:
    """The same with the files that `export_model` wrote, one text after the other."""
    found: dict[str, Served] = {}
    # `quantize_dynamic` is that of ONNX Runtime.
    for kind in ("float32", "quantize_dynamic"):
        files = [folder / f"{kind}-{part}.onnx" for part in ("decoder", "encoder")]
        if kind == "quantize_dynamic":
            for file in files:
                quantize_dynamic(folder / file.name.replace(kind, "float32"), file)
        size, engine = sum(file.stat().st_size for file in files), OnnxGenerator(run, *files)
        found[f"ONNX Runtime {kind}"] = size, partial(one_by_one, engine)
    return found


def one_by_one(call: Callable[[Any], Any], texts: list[Any]) -> list[Any]:
    """What `call` gives for each text."""
    return [call(text) for text in texts]


def medians(turns: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The median of the milliseconds of each turn."""
    return {name: times[1] for name, (times, _) in time_turns(turns, TURNS, warmup=1).items()}


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    path: Path = parser.parse_args().run
    info = RunFolder(path).read_info()
    task: Any = RunFolder(path).read_task(info)
    split = task.records(data_path(info, None), "test").load()
    chunks = [split.sources[start : start + BATCH] for start in range(0, SCORED, BATCH)]
    singles = [[text] for text in split.sources[:TIMED]]
    print(f"| | MB | ms per text, one at a time | ms per batch of {BATCH} | BLEU |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        # The threads of ONNX Runtime stay busy for a while after a turn, so PyTorch does not take turns with it.
        for served in (pytorch, onnx):
            engines = served(path, Path(folder))
            alone = medians({name: partial(one_by_one, each, singles) for name, (_, each) in engines.items()})
            together = medians({name: partial(each, chunks[0]) for name, (_, each) in engines.items()})
            for name, (size, each) in engines.items():
                outputs = [line for chunk in chunks for line in each(chunk)]
                bleu = task.score(outputs, split.targets[: len(outputs)])["bleu"]
                times = f"{alone[name] / TIMED:.1f} | {together[name]:.1f}"
                print(f"| {name} | {size / 1e6:.1f} | {times} | {bleu:.1f} |")


if __name__ == "__main__":
    main()
