"""Register the models with Hugging Face's Auto classes, without importing transformers before it is wanted.

`import synthetic_attention` is to be enough for `AutoModel….from_pretrained`, and is to stay cheap for who wants only
the layer or the command line (transformers takes seconds to import). So if the Auto classes are loaded the models
register at once, and otherwise as soon as they are.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_AUTO = ("transformers.models.auto.configuration_auto", "transformers.models.auto.modeling_auto")


def register_when_needed() -> None:
    """Register now if transformers' Auto classes are loaded, else when they are. May be called again."""
    if any(name in sys.modules for name in _AUTO):
        importlib.import_module("synthetic_attention.models")
    elif not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())


class _AfterImport(MetaPathFinder):
    """Imports our models after the first import from transformers that has loaded an Auto class.

    After the whole of it, that is: modules of transformers import one another, and our models need them complete.
    """

    def __init__(self) -> None:
        self._inside = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if self._inside or not fullname.startswith("transformers."):
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is None or spec.loader is None:
            return spec
        loader = spec.loader
        execute = loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            self._inside = True
            try:
                execute(module)
            finally:
                self._inside = False
            if any(name in sys.modules for name in _AUTO):
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                importlib.import_module("synthetic_attention.models")

        loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec
