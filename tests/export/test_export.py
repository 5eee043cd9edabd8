"""Exported models: PyTorch's own exporters, files, ONNX Runtime, and steps with a cache."""

import copy
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.export import Dim

from models.conftest import LONGEST, STACKS, VOCABULARY, build, tiny_config
from synthetic_attention import SynthesizerModel
from synthetic_attention.export import export_model, largest_difference
from training.runs import full_disk

__all__ = ["build", "tiny_config"]

onnxruntime = pytest.importorskip("onnxruntime", reason="the extra export is not installed")
Tensors = dict[str, Tensor]
# Batch, source and target; what is traced, then what is run.
TRACED, SIZES = (3, 6, 5), [(1, 1, 1), (4, LONGEST, LONGEST), (2, 7, 5)]
AXES = {"input_ids": "length", "attention_mask": "length", "decoder_input_ids": "decoder_length"}


@pytest.fixture
def model(build: Callable, head: str, stack: str) -> Any:
    """A model with a layer of each synthesizer of a stack; Linformer cannot be causal."""
    if head != "base":
        return build(head, **STACKS[stack])
    names = [*STACKS[stack]["synthesizer"], "linformer"]
    return SynthesizerModel(build("classifier", synthesizer=names, num_layers=len(names)).config).eval()


def batch(model: Any, rows: int, length: int, target: int) -> Tensors:
    """Rows of random tokens: the first padded on the left, the last on the right."""
    ids, mask = torch.randint(3, VOCABULARY, (rows, length)), torch.ones(rows, length, dtype=torch.long)
    if length > 3:
        mask[0, :2] = mask[-1, -1] = 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.randint(3, VOCABULARY, (rows, target))
    return inputs


def check(model: Any, call: Callable[[Tensors], Any]) -> None:
    """Compare outputs with the model's in batches of all sizes, up to the longest sequence."""
    for sizes in SIZES:
        inputs = batch(model, *sizes)
        with torch.no_grad():
            expected = model(**inputs)[0]
        torch.testing.assert_close(torch.as_tensor(call(inputs)), expected, atol=1e-4, rtol=1e-4)


def run_onnx(file: Path, inputs: Tensors) -> Tensors:
    session = onnxruntime.InferenceSession(file)
    names = [node.name for node in session.get_outputs()]
    found = session.run(names, {name: tensor.numpy() for name, tensor in inputs.items()})
    return dict(zip(names, map(torch.from_numpy, found), strict=True))


# Every stack once; the other pairs are slow tests.
FAST = {("base", "windows"), ("causal", "functions"), ("classifier", "mixtures"), ("causal", "rotary")}


@pytest.mark.parametrize(
    ("head", "stack"),
    [
        pytest.param(head, stack, marks=() if (head, stack) in FAST else pytest.mark.slow)
        for head in ("seq2seq", "causal", "classifier", "base")
        for stack in STACKS
    ],
)
def test_pytorchs_exporter(model: Any, stack: str) -> None:
    if stack == "rotary" and torch.__version__ < "2.12":
        pytest.skip("the exporter of torch 2.11 guesses that the batch is larger than one")
    inputs, sizes = batch(model, *TRACED), {name: Dim(name, min=1, max=LONGEST) for name in ("batch", *AXES.values())}
    shapes = {name: {0: sizes["batch"], 1: sizes[AXES[name]]} for name in inputs}
    with torch.no_grad():
        program = torch.export.export(model, (), inputs, dynamic_shapes=shapes)
    operators = [node.target for node in program.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
    assert {operator.namespace for operator in operators} == {"aten"}
    check(model, lambda inputs: program.module()(**inputs)[0])


ONNX = pytest.mark.parametrize(
    ("head", "stack"), [("seq2seq", "functions"), ("causal", "mixtures"), ("classifier", "windows")]
)


@pytest.mark.slow
@ONNX
def test_pytorchs_onnx_exporter(model: Any, tmp_path: Path) -> None:
    inputs, file = batch(model, *TRACED), tmp_path / "model.onnx"
    shapes = {name: {0: "batch", 1: AXES[name]} for name in inputs}
    # The exporter warns of packages that it does not need, and of its names of axes.
    with warnings.catch_warnings(action="ignore"):
        torch.onnx.export(model, (), file, kwargs=inputs, dynamo=True, dynamic_shapes=shapes, output_names=["logits"])
    check(model, lambda inputs: run_onnx(file, inputs)["logits"])


@pytest.mark.slow
@ONNX
def test_onnx_files_take_batches_of_all_sizes(model: Any, tmp_path: Path) -> None:
    (file,) = export_model(model, tmp_path / "new/model.onnx")
    check(model, lambda inputs: run_onnx(file, inputs)["logits"])
    assert largest_difference(model, file) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "stack"), [("causal", "functions"), ("causal", "rotary"), ("seq2seq", "mixtures"), ("seq2seq", "windows")]
)
def test_steps_with_a_cache_equal_the_model(model: Any, tmp_path: Path) -> None:
    inputs = batch(model, 3, LONGEST, LONGEST)
    ids, mask, fixed = inputs["input_ids"], inputs["attention_mask"], {}
    *encoder, decoder = export_model(model, tmp_path / "model.onnx", with_cache=True)
    if encoder:
        fixed = {**run_onnx(encoder[0], {"input_ids": ids, "attention_mask": mask}), "encoder_attention_mask": mask}
        ids, mask = inputs["decoder_input_ids"], torch.ones_like(mask)
    shapes = {node.name: node.shape for node in onnxruntime.InferenceSession(decoder).get_inputs()}
    past = {name: torch.zeros(3, shape[1], 0, shape[3]) for name, shape in shapes.items() if name.startswith("past")}
    steps = []
    for start, end in [(0, 5), *((last, last + 1) for last in range(5, LONGEST))]:
        step = {"input_ids": ids[:, start:end], "attention_mask": mask[:, :end]}
        outputs = run_onnx(decoder, {**step, **past, **fixed})
        steps.append(outputs.pop("logits"))
        past = {name.replace("present", "past"): tensor for name, tensor in outputs.items()}
    with torch.no_grad():
        expected = model(**inputs)[0]
    real = mask[..., None]
    torch.testing.assert_close(torch.cat(steps, 1) * real, expected * real, atol=1e-4, rtol=1e-4)
    assert all(largest_difference(model, file) < 1e-4 for file in (*encoder, decoder))


LOAD = """
import sys
sys.modules["synthetic_attention"] = None
import torch
inputs, expected = torch.load("inputs.pt")
found = torch.export.load("ours.pt2").module()(**inputs)
torch.testing.assert_close(found["logits"], expected)
assert "transformers" not in sys.modules
# The outputs of the model itself are a class of transformers.
import transformers.modeling_outputs
found = torch.export.load("pytorchs.pt2").module()(**inputs)
torch.testing.assert_close(found.logits, expected)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("head", "stack"), [("seq2seq", "functions")])
def test_a_program_runs_without_this_package(model: Any, tmp_path: Path) -> None:
    inputs = batch(model, *TRACED)
    with torch.no_grad():
        torch.save((inputs, model(**inputs).logits), tmp_path / "inputs.pt")
        torch.export.save(torch.export.export(model, (), inputs), tmp_path / "pytorchs.pt2")
    model.train()
    assert export_model(model, tmp_path / "ours.pt2", "torch") == [tmp_path / "ours.pt2"]
    assert model.training
    subprocess.run([sys.executable, "-c", LOAD], cwd=tmp_path, check=True)


@pytest.mark.parametrize(("head", "stack"), [("classifier", "functions")])
def test_what_cannot_be_exported(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "model"
    with pytest.raises(ValueError, match="'tflite'"):
        export_model(model, file, "tflite")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="SynthesizerForSequenceClassification"):
        export_model(model, file, with_cache=True)
    file.touch()
    with pytest.raises(ValueError, match=str(file)):
        export_model(model, file, overwrite=False)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"onnxscript.*\[export\]"):
        export_model(model, file)


@pytest.mark.parametrize("name", ["vanilla", "dense+random"])
def test_int8_weights_of_torchao(build: Callable, name: str) -> None:
    torchao = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    model = build("causal", synthesizer=name, d_model=64)
    torchao.quantize_(quantized := copy.deepcopy(model), torchao.Int8WeightOnlyConfig())
    inputs = batch(model, *TRACED)
    with torch.no_grad():
        expected = model(**inputs).logits
        assert 0 < (quantized(**inputs).logits - expected).norm() < 0.05 * expected.norm()
    assert quantized.generate(**inputs, max_new_tokens=4, eos_token_id=None).shape == (3, 10)


@pytest.mark.parametrize("kind", ["torch", "onnx"])
def test_a_full_disk(kind: Any, build: Callable, tmp_path: Path) -> None:
    file = tmp_path / "model"
    with full_disk(100), pytest.raises(OSError, match=f"{file} cannot be written: "):
        export_model(build("classifier"), file, kind)
    assert not [*tmp_path.iterdir()]
