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

Translate = Callable[[list[str]], list[str]]
# Bytes of the weights, and how to translate.
Served = tuple[int, Translate]
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
    found = {}
    # `quantize_dynamic` is that of ONNX Runtime.
    for kind in ("float32", "quantize_dynamic"):
        files = [folder / f"{kind}-{part}.onnx" for part in ("decoder", "encoder")]
        if kind == "quantize_dynamic":
            for file in files:
                quantize_dynamic(folder / file.name.replace(kind, "float32"), file)
        found[f"ONNX Runtime {kind}"] = (
            sum(file.stat().st_size for file in files),
            of_each(OnnxGenerator(run, *files)),
        )
    return found


def of_each(call: Callable[[str], str]) -> Translate:
    """Each text by itself."""
    return lambda texts: [call(text) for text in texts]


def one_by_one(engine: Translate, texts: list[str]) -> list[str]:
    """In batches of one."""
    return [line for text in texts for line in engine([text])]


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    path: Path = parser.parse_args().run
    info = RunFolder(path).read_info()
    task: Any = RunFolder(path).read_task(info)
    split = task.read(data_path(info, None), "test")
    sources = split.sources[:SCORED]
    chunks = [sources[start : start + BATCH] for start in range(0, len(sources), BATCH)]
    with tempfile.TemporaryDirectory() as folder:
        served = {**pytorch(path, Path(folder)), **onnx(path, Path(folder))}
        times: list[dict[str, Any]] = [{}, {}]
        # The threads of ONNX Runtime stay busy for a while after a turn, so PyTorch does not take turns with it.
        for is_onnx in (False, True):
            engines = {name: each for name, (_, each) in served.items() if name.startswith("ONNX") == is_onnx}
            alone = {name: partial(one_by_one, each, sources[:TIMED]) for name, each in engines.items()}
            times[0] |= time_turns(alone, TURNS, warmup=1)
            if not is_onnx:
                together = {name: partial(each, chunks[0]) for name, each in engines.items()}
                times[1] |= time_turns(together, TURNS, warmup=1)
        print(f"| | MB | ms per text, one at a time | × PyTorch | ms per batch of {BATCH} | × PyTorch | BLEU |")
        print("|---|---|---|---|---|---|---|")
        for name, (size, each) in served.items():
            cells = [name, f"{size / 1e6:.1f}"]
            for found, count in zip(times, (TIMED, 1), strict=True):
                # The medians.
                mine, first = (found[key][0][1] if key in found else 0 for key in (name, "PyTorch"))
                cells += [f"{mine / count:.1f}", f"{first / mine:.2f}"] if mine else ["", ""]
            outputs = [line for chunk in chunks for line in each(chunk)]
            bleu = task.score(outputs, split.targets[: len(outputs)])["bleu"]
            print(f"| {' | '.join([*cells, f'{bleu:.1f}'])} |")


if __name__ == "__main__":
    main()
