"""Scores of text and labels, in percent as in the paper. They depend on no model and no training."""
