"""softmax(logits) · V: `attend`, which chooses, and the ways it chooses from."""

from .dispatch import attend
from .eager import attention_weights

__all__ = ["attend", "attention_weights"]
