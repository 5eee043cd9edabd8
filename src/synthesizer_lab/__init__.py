"""The experiments of the paper as the command `synthesizer`: data, tasks, training, comparisons, inspection.

Built on the library `synthetic_attention`, which imports nothing of this package.
"""
