"""Settings of the whole suite: few threads, a fixed seed before every test, caches in a temporary folder."""

import gc
import os
import shutil
import tempfile

# Read when transformers, datasets and PyTorch are imported. With several workers (pytest-xdist) each has one thread,
# and so has what it starts, or they would wait for each other.
_CACHES = tempfile.mkdtemp(prefix="synthetic-attention-tests-")
os.environ["HF_HOME"] = f"{_CACHES}/huggingface"
os.environ["XDG_CACHE_HOME"] = f"{_CACHES}/cache"
os.environ["OMP_NUM_THREADS"] = "1" if "PYTEST_XDIST_WORKER" in os.environ else "2"

import pytest  # noqa: E402
import torch  # noqa: E402

if not torch.cuda.is_available():
    # Triton's kernels run in its interpreter, on the CPU.
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_finish() -> None:
    gc.freeze()  # what is imported by now: a collection takes milliseconds then, not half a second


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda") and not torch.cuda.is_available():
        pytest.skip("no CUDA device")


def pytest_unconfigure() -> None:
    shutil.rmtree(_CACHES, ignore_errors=True)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
