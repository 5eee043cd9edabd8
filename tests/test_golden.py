"""`attend` gives the outputs of the authors' own code on small inputs. Where they come from: golden/README.md."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from synthetic_attention import InnerLogits, MixedLogits, SharedLogits, attend

_ARCHIVE = np.load(Path(__file__).parent / "golden" / "mesh_tensorflow.npz")
_CASES = json.loads(str(_ARCHIVE["index"]))
_MODES = {"random", "dense_minus", "random_plus", "random_plus_alpha", "dense_plus", "dense_plus_alpha"}


class Case:
    """One case of the archive, its tensors in the order of `attend`: (batch, heads, length, width)."""

    def __init__(self, index: dict, dtype: torch.dtype) -> None:
        self.mode, self.mask = index["mode"], index["mask"]
        self.position, self.length = index["position"], index["length"]
        self.queries = 1 if self.mask == "decode" else self.length
        self._name, self._dtype = index["case"], dtype

    def tensor(self, name: str) -> Tensor | None:
        key = f"{self._name}/{name}"
        return torch.from_numpy(_ARCHIVE[key]).to(self._dtype) if key in _ARCHIVE.files else None

    def heads_first(self, name: str) -> Tensor:
        """(batch, length, heads, width) to (batch, heads, length, width); a decoding step has no length."""
        x = self.tensor(name)
        return (x.unsqueeze(1) if x.dim() == 3 else x).transpose(1, 2)

    def logits(self):
        """The mode's formula: q·k, the shared R, the dense relu(q) P, or a mixture of two of them."""
        if self.mode == "random":
            return self._random()
        if self.mode == "dense_minus":
            return self._dense()
        terms = (self._dot(), self._random() if self.mode.startswith("random") else self._dense())
        if not self.mode.endswith("_alpha"):
            return MixedLogits(terms)
        gate = torch.sigmoid(self.tensor("alpha"))
        heads = self.heads_first("v").shape[1]
        return MixedLogits(terms, torch.stack([1 - gate, gate]).expand(2, heads))

    def _random(self):
        r = self.tensor("R").transpose(0, 1)
        return SharedLogits(r if self.position is None else r[:, self.position : self.position + 1])

    def _dot(self):
        return InnerLogits(self.heads_first("q"), self.heads_first("k"))

    def _dense(self):
        query = torch.relu(self.heads_first("q"))
        return InnerLogits(query, self.tensor("pi_kernel").T.expand(1, query.shape[1], -1, -1))

    def bias(self) -> Tensor:
        """The additive mask as (batch or 1, 1, queries, keys)."""
        bias = self.tensor("bias")
        return bias.reshape(1, 1, 1, -1) if bias.dim() == 1 else bias.unsqueeze(1)

    def masks(self) -> dict:
        """The same mask in `attend`'s terms, checked to be the same."""
        batch = self.heads_first("v").shape[0]
        if self.mask == "full":
            return {}
        hidden = (self.bias() < 0).expand(batch, 1, self.queries, self.length)
        if self.mask == "padded":
            kept = ~hidden[:, 0, 0]
            assert torch.equal(hidden[:, 0], ~kept[:, None, :].expand_as(hidden[:, 0]))
            return {"attention_mask": kept}
        offset = self.position or 0
        future = torch.ones(self.queries, self.length, dtype=torch.bool).triu(1 + offset)
        assert torch.equal(hidden[:, 0], future.expand_as(hidden[:, 0]))
        return {"is_causal": True, "query_offset": offset}


def _label(index: dict) -> str:
    return f"{index['case']}-{index['mode']}-{index['mask']}"


def test_archive_is_the_one_that_is_known():
    assert len(_CASES) == 24
    assert {index["mode"] for index in _CASES} == _MODES
    assert {index["mask"] for index in _CASES} == {"full", "causal", "padded", "decode"}


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("index", _CASES, ids=_label)
def test_case(index, dtype, train):
    """The paths that record a graph give the same numbers as those that do not."""
    case = Case(index, dtype)
    value = case.heads_first("v").requires_grad_(train)
    out = attend(case.logits(), value, **case.masks())
    torch.testing.assert_close(out.detach(), case.heads_first("out"), atol=5e-6, rtol=0)
    if train:
        out.sum().backward()
        assert value.grad.isfinite().all()


@pytest.mark.parametrize("index", [i for i in _CASES if i["mask"] != "full"], ids=_label)
def test_case_with_its_mask_as_an_additive_bias(index):
    case = Case(index, torch.float32)
    out = attend(case.logits(), case.heads_first("v"), attn_bias=case.bias())
    torch.testing.assert_close(out, case.heads_first("out"), atol=5e-6, rtol=0)
