"""softmax(logits) · V: `attend` chooses one of the kernels. Everything that is there for speed or memory is here."""

from .dispatch import attend
from .eager import attention_weights, sum_values
from .matmul import join_heads, linear, project_by_feature, split_heads
from .shared import CachedLogits, SoftmaxCache

__all__ = [
    "CachedLogits",
    "SoftmaxCache",
    "attend",
    "attention_weights",
    "join_heads",
    "linear",
    "project_by_feature",
    "split_heads",
    "sum_values",
]
