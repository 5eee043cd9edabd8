"""How often a model call waits for an accelerator: each time it reads a number back, the device runs out of work.

This file is also a script that runs models on the device of `accelerator.py`, compares outputs and gradients with
those on the CPU, and prints as JSON what was read back in each case.
"""

import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache

sys.path.insert(0, str(Path(__file__).parents[1]))
from models.conftest import HEADS, SIZES, STACKS
from synthetic_attention.kernels import is_unchanged
from synthetic_attention.models import SynthesizerConfig

pytestmark = pytest.mark.slow

MASKS = ["none", "full", "right", "left", "holes"]
LAYERS = [name for stack in STACKS.values() for name in stack["synthesizer"]]
FEW = ["random", "dense+vanilla", "dynamic_conv"]
# Read: the mask or segments, position_ids (with labels twice), and the labels of a fused loss.
READS = {
    "classifier, all layers": 1,
    "causal, all layers": 2,
    "causal, segments": 2,
    "causal, position_ids": 3,
    "causal, position_ids that begin again": 3,
    "causal, a step": 0,
    "causal, a step with padding": 1,
}


def _mask(kind: str, rows: int = 4, length: int = 7) -> Tensor | None:
    mask = torch.ones(rows, length, dtype=torch.long)
    if kind in ("right", "holes"):
        mask[1, 3:] = mask[2, 5:] = 0
    if kind == "left":
        mask[1, :3] = mask[2, :5] = 0
    if kind == "holes":
        mask[3, [1, 4]] = 0
    return None if kind == "none" else mask


def _model(head: str, layers: list[str]) -> Any:
    torch.manual_seed(0)
    fields: dict[str, Any] = {**SIZES, "num_layers": len(layers), "num_labels": 5, "dropout_rate": 0.0}
    fields["position_embedding_type"] = "relative"
    return HEADS[head](SynthesizerConfig(**fields, synthesizer=layers)).double().train()


def _batch(head: str, kind: str) -> dict[str, Any]:
    labels = torch.randint(5, (4,) if head == "classifier" else (4, 7))
    if head != "classifier":
        labels[0, 5:] = -100
    return {"input_ids": torch.randint(3, 53, (4, 7)), "attention_mask": _mask(kind), "labels": labels}


def _cases() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Names, modules and their arguments."""
    for head in HEADS:
        for kind in MASKS:
            yield f"{head} {kind}", _model(head, FEW), _batch(head, kind)
    # All layers in a bidirectional and in a causal stack.
    yield "classifier, all layers", _model("classifier", [*LAYERS, "linformer"]), _batch("classifier", "holes")
    yield "causal, all layers", _model("causal", LAYERS), _batch("causal", "holes")
    model, batch = _model("causal", FEW), _batch("causal", "none")
    segments = torch.tensor([[1, 1, 2, 2, 2, 0, 3], [0, 5, 5, 0, 0, 5, 5], [1] * 7, [1] * 7])
    yield "causal, segments", model, {**batch, "segment_ids": segments}
    yield "causal, position_ids", model, {**batch, "position_ids": torch.arange(7)[None]}
    yield (
        "causal, position_ids that begin again",
        model,
        {**batch, "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3]])},
    )
    model = model.eval()
    step = {"input_ids": torch.randint(3, 53, (4, 1)), "past_key_values": 6}
    yield "causal, a step", model, step
    yield "causal, a step with padding", model, {**step, "attention_mask": _mask("left")}


def _run(module: Any, arguments: dict[str, Any]) -> list[Tensor]:
    """Output and gradients."""
    arguments = dict(arguments)
    if length := arguments.pop("past_key_values", None):
        # A cache with the tokens before.
        cache, ids = DynamicCache(config=module.config), arguments["input_ids"].expand(-1, length)
        mask = arguments.get("attention_mask")
        with torch.no_grad():
            module(ids, attention_mask=None if mask is None else mask[:, :length], past_key_values=cache)
            _forget()
            return [module(**arguments, past_key_values=cache).logits]
    output = module(**arguments)
    loss = output.square().sum() if isinstance(output, Tensor) else output.loss
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return [loss, *torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)]


def _forget() -> None:
    mode = torch.utils._python_dispatch._get_current_dispatch_mode()
    if mode is not None:
        mode.reads.clear()  # type: ignore[attr-defined]


def main() -> None:
    from accelerator import Accelerator, OnDevice, move

    found = {}
    for name, module, arguments in _cases():
        want = _run(module, arguments)
        with Accelerator() as device:
            given = {key: OnDevice(x) if isinstance(x, Tensor) else x for key, x in arguments.items()}
            got = _run(move(copy.deepcopy(module)), given)
            found[name] = list(device.reads)
        torch.testing.assert_close([x.data_on_cpu for x in got], want, msg=lambda text, name=name: f"{name}: {text}")
    print(json.dumps(found))


@pytest.fixture(scope="module")
def reads() -> dict[str, list[str]]:
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("head", HEADS)
def test_a_mask_and_labels_are_read_once_before_the_layers(head: str, kind: str, reads: dict[str, list[str]]) -> None:
    has_fused_loss = head in ("seq2seq", "causal", "masked")
    assert len(reads[f"{head} {kind}"]) == (kind != "none") + has_fused_loss, reads[f"{head} {kind}"]


@pytest.mark.parametrize(("case", "count"), READS.items())
def test_other_calls(case: str, count: int, reads: dict[str, list[str]]) -> None:
    assert len(reads[case]) == count, reads[case]


if __name__ == "__main__":
    # The parameters of the device are of a class of their own, of which `is_plain` knows nothing.
    plain = mock.Mock(side_effect=lambda module: is_unchanged(module, nn.Linear))
    with (
        mock.patch("synthetic_attention.kernels.projections.is_plain", plain),
        mock.patch("synthetic_attention.models.heads.is_plain", plain),
        # Short values too move by feature.
        mock.patch("synthetic_attention.attention.SHORT_COLUMNS", 0),
    ):
        main()
