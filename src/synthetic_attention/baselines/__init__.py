"""The paper's baselines besides dot-product attention (convolutions, Linformer), and local dense attention.

Each is a layer in the place of `SynthesizerAttention`, called in the same way. They have no logits for all pairs of
tokens, so they do not mix and take no bias on the logits.
"""

from .base import Baseline
from .convolution import DynamicConvolution, LightweightConvolution
from .linformer import Linformer
from .local_dense import LocalDense

__all__ = ["Baseline", "DynamicConvolution", "LightweightConvolution", "Linformer", "LocalDense"]
