"""Pretrained models in: their weights in our layers, and synthesized attention in the place of dot products."""

from .convert import convert
from .synthesize import synthesize

__all__ = ["convert", "synthesize"]
