"""Import the scripts of benchmarks/ and examples/, which are in no package."""

import importlib.util
import sys
from types import ModuleType

from documents import ROOT


def load_script(name: str) -> ModuleType:
    """The module of benchmarks/NAME.py or examples/NAME.py, newly made."""
    (path,) = (*ROOT.glob(f"benchmarks/{name}.py"), *ROOT.glob(f"examples/{name}.py"))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their own module up while they are made.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
