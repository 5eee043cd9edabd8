"""Models as ONNX files and as programs of `torch.export`, which run where this package is not installed."""

from .export import export_model, largest_difference

__all__ = ["export_model", "largest_difference"]
