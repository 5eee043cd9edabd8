"""Scores of text and of labels: one file for each kind of task. They know nothing of models or training.

Scores are in percent, as the paper prints them: a reference library's 0.4711 is 47.11 here.
"""
