"""What the tests of the models go through: every function, mixtures of all forms of logits, and the baselines."""

FUNCTIONS = ["vanilla", "dense", "random", "fixed_random", "factorized_dense", "factorized_random"]
MIXTURES = [
    "random+vanilla",
    "dense+vanilla",
    "random+dense",
    "factorized_random+factorized_dense",
    "factorized_dense+random+vanilla",
]
WINDOWS = ["lightweight_conv", "dynamic_conv", "local_dense"]
EVERY = FUNCTIONS + MIXTURES + WINDOWS
