"""The decode loop of this package: faster than transformers' `generate()`, with the same tokens."""

from .loop import decode, generate

__all__ = ["decode", "generate"]
