"""softmax(logits) · V: `attend` chooses one of the kernels. Everything that is there for speed or memory is here."""

from .dispatch import attend
from .eager import attention_weights, masked_softmax, sum_values
from .projections import is_plain, join_heads, linear, project_by_feature, split_heads
from .softmax_cache import CachedLogits, SoftmaxCache

__all__ = [
    "CachedLogits",
    "SoftmaxCache",
    "attend",
    "attention_weights",
    "is_plain",
    "join_heads",
    "linear",
    "masked_softmax",
    "project_by_feature",
    "split_heads",
    "sum_values",
]
