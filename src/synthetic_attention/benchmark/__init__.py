"""Measurements of speed and memory, side by side with PyTorch's and Hugging Face's own layers and models."""
