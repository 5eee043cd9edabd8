"""Readers of data sets: one file each, from a path to plain records. They know nothing of tokens or training."""
