"""What the paper compares the Synthesizer with, beside dot-product attention: convolutions and Linformer. And local
dense attention, a Synthesizer that is made as a convolution is.

Each is a layer in the place of `SynthesizerAttention`, called as it is. They are no synthesizing functions: they have
no logits for all pairs of tokens. So they do not mix, and no bias can be added to their logits.
"""

from .base import BASELINES, Baseline
from .convolution import DynamicConvolution, LightweightConvolution
from .linformer import Linformer
from .local_dense import LocalDense

__all__ = ["BASELINES", "Baseline", "DynamicConvolution", "LightweightConvolution", "Linformer", "LocalDense"]
