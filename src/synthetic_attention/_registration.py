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

_CONFIGS = "transformers.models.auto.configuration_auto"
_MODELS = "transformers.models.auto.modeling_auto"


def register_when_needed() -> None:
    """Register now if transformers' Auto classes are loaded, else when they are. May be called again."""
    if _CONFIGS in sys.modules or _MODELS in sys.modules:
        importlib.import_module("synthetic_attention.models")
    elif not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())


class _AfterImport(MetaPathFinder):
    """Imports our models right after the first of the modules that define the Auto classes."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in (_CONFIGS, _MODELS):
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is None or spec.loader is None:
            return spec
        loader = spec.loader
        execute = loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            execute(module)
            # The module of the models imports that of the configurations first: then it is not complete yet.
            if fullname == _MODELS or _MODELS not in sys.modules:
                importlib.import_module("synthetic_attention.models")

        loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec
