"""The self-attention of a trained model over a text, which `heads` replaces and `inspect` shows."""
