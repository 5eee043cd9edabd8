"""Speed and memory of our layers and models, compared with those of PyTorch and Hugging Face in one process."""
