"""What the paper compares the Synthesizer with, beside dot-product attention: convolutions and Linformer.

Each is a layer in the place of `SynthesizerAttention`, called as it is. They are no synthesizing functions: a
convolution's weights are no softmax over the tokens that there are, and Linformer attends to no tokens at all. So they
do not mix, and no bias can be added to their logits.
"""

from .base import BASELINES, Baseline
from .convolution import DynamicConvolution, LightweightConvolution
from .linformer import Linformer

__all__ = ["BASELINES", "Baseline", "DynamicConvolution", "LightweightConvolution", "Linformer"]
