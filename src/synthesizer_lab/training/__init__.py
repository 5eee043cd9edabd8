"""Train and evaluate: settings and presets, the Trainer, the folder of a run, generation."""
