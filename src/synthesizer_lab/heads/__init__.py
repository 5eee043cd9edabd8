"""Synthesized heads for a pretrained model: which to replace, what they start from, and how they learn from the old."""
