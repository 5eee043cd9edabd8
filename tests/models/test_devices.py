"""Precision, compilation and determinism of whole models, on a CPU and, where there is one, on a GPU."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import CompileConfig

from models.conftest import HEADS, STACKS, WINDOWS

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
# A layer of each kernel: shared, inner, both, outer, groups of heads, a window.
LAYERS = ["random", "dense+vanilla", "random+vanilla", "factorized_dense", "random/vanilla", "dynamic_conv"]
Inputs = Callable[[str, str], dict[str, Tensor]]


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """PyTorch's own settings after each test. cuBLAS is deterministic with this workspace."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    precision = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(precision)
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def inputs(rows: tuple[Tensor, Tensor]) -> Inputs:
    """A padded batch with labels."""
    ids, mask = rows
    classes = {"classifier": torch.tensor([1, 0, -100, 1]), "tagger": (ids % 2).masked_fill(mask == 0, -100)}

    def make(head: str, device: str) -> dict[str, Tensor]:
        labels = classes.get(head, ids.masked_fill(mask == 0, -100))
        return {"input_ids": ids.to(device), "attention_mask": mask.to(device), "labels": labels.to(device)}

    return make


@pytest.fixture
def layered(build: Callable) -> Callable[..., Any]:
    """A model in training, without dropout, with some layers."""

    def make(head: str, device: str = "cpu", layers: list[str] = LAYERS, **fields: Any) -> Any:
        fields = {"synthesizer": layers, "num_layers": len(layers), "dropout_rate": 0.0, **fields}
        return build(head, **fields).train().to(device)

    return make


def _gradients(model: Any, batch: dict[str, Tensor]) -> list[Tensor]:
    """The loss and all gradients."""
    loss, parameters = model(**batch).loss, list(model.parameters())
    return [loss.detach(), *torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)]


def _error(found: list[Tensor], want: list[Tensor]) -> float:
    """The norm of the difference, relative to that of `want`, over all tensors together."""
    a, b = (torch.cat([x.detach().flatten().double().cpu() for x in each]) for each in (found, want))
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("head", HEADS)
def test_float32_is_as_float64_on_the_cpu(head: str, device: str, layered: Callable, inputs: Inputs) -> None:
    model = layered(head)
    want = _gradients(copy.deepcopy(model).double(), inputs(head, "cpu"))
    assert _error(_gradients(model.to(device), inputs(head, device)), want) < 1e-5


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("head", ["seq2seq", "causal", "classifier"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_near_float32(
    dtype: torch.dtype, head: str, device: str, layered: Callable, inputs: Inputs
) -> None:
    """With a scaler, as float16 needs one: the gradients of the scaled loss, divided by the scale."""
    model, batch = layered(head, device), inputs(head, device)
    want = _gradients(model, batch)
    scaler = torch.amp.GradScaler(device, enabled=dtype == torch.float16)
    with torch.autocast(device, dtype):
        loss = model(**batch).loss
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    parameters = list(model.parameters())
    found = [loss, *(torch.zeros_like(p) if p.grad is None else p.grad for p in parameters)]
    assert {x.dtype for x in found} == {torch.float32}
    assert 0 < _error(found, want) < 0.05
    before = [p.detach().clone() for p in parameters]
    scaler.step(optimizer)
    # No gradient was infinite: the step was taken.
    assert any(not torch.equal(p, old) for p, old in zip(parameters, before, strict=True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("head", ["causal", "classifier"])
@pytest.mark.parametrize("stack", STACKS)
def test_deterministic_algorithms(stack: str, head: str, device: str, layered: Callable, inputs: Inputs) -> None:
    """No operator of any layer refuses, and gradients are the same each time."""
    torch.use_deterministic_algorithms(True)
    fields = {"position_embedding_type": "relative"} if stack != "windows" else {}
    model = layered(head, device, STACKS[stack]["synthesizer"], **fields)
    first, second = (_gradients(model, inputs(head, device)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.gradient_checkpointing_enable. is deprecated")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("autocast", "checkpointing"), [(False, False), (True, True)])
def test_compiled_layers_train_as_eager_ones(
    autocast: bool, checkpointing: bool, device: str, layered: Callable, inputs: Inputs
) -> None:
    """Compiled as `train --torch-compile` does: each block is one graph, also with checkpoints and under autocast."""
    torch.compiler.reset()
    model, batch = layered("causal", device, LAYERS[1:3]), inputs("causal", device)
    compiled = copy.deepcopy(model)
    if checkpointing:
        compiled.gradient_checkpointing_enable({"use_reentrant": False})
    for module in compiled.modules():
        if type(module).__name__ in model._no_split_modules:
            module.compile(dynamic=True, fullgraph=True, backend="aot_eager")
    with torch.autocast(device, torch.bfloat16, enabled=autocast):
        error = _error(_gradients(compiled, batch), _gradients(model, batch))
    assert error < (0.02 if autocast else 1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("head", HEADS)
def test_whole_models_compile_to_one_graph(head: str, device: str, layered: Callable, inputs: Inputs) -> None:
    torch.compiler.reset()
    model, batch = layered(head, device, LAYERS[2:4]), inputs(head, device)
    compiled: Any = torch.compile(copy.deepcopy(model), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(**batch).loss, model(**batch).loss)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "layers", ["rotary", ["random", "vanilla"], ["factorized_dense", "random/vanilla"], WINDOWS[1:]]
)
@pytest.mark.parametrize("head", ["seq2seq", "causal"])
def test_static_cache_and_compiled_steps(
    head: str, layers: str | list[str], device: str, layered: Callable, inputs: Inputs
) -> None:
    """The same tokens; a decoding step is one graph. On a GPU the steps are recorded as CUDA graphs."""
    torch.compiler.reset()
    model = layered(head, device, **STACKS.get(str(layers), {"synthesizer": layers, "num_layers": len(layers)})).eval()
    batch = {name: x for name, x in inputs(head, device).items() if name != "labels"}
    options: dict[str, Any] = {"max_new_tokens": 7, "eos_token_id": None, "pad_token_id": 0}
    config = CompileConfig(fullgraph=True, dynamic=False)
    if device == "cpu":
        config.backend, config.mode, config._compile_all_devices = "aot_eager", None, True
    want = model.generate(**batch, **options)
    assert torch.equal(model.generate(**batch, cache_implementation="static", compile_config=config, **options), want)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"]
