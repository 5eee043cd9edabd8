"""Look inside a trained model."""
