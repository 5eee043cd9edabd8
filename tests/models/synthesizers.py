"""Layers that the models are tested with: every function, mixtures of all forms of logits, the causal baselines."""

from synthetic_attention.synthesizers import known

FUNCTIONS = known(layers=False)
MIXTURES = [
    "random+vanilla",
    "dense+vanilla",
    "random+dense",
    "factorized_random+factorized_dense",
    "factorized_dense+random+vanilla",
]
WINDOWS = ["lightweight_conv", "dynamic_conv", "local_dense"]
# Models with a layer of each.
STACKS = {
    name: {"synthesizer": layers, "num_layers": len(layers)}
    for name, layers in {"functions": FUNCTIONS, "mixtures": MIXTURES, "windows": WINDOWS}.items()
}
