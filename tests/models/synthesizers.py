"""The synthesizers that the tests of the models go through: every function, and mixtures of all forms of logits."""

FUNCTIONS = ["vanilla", "dense", "random", "fixed_random", "factorized_dense", "factorized_random"]
MIXTURES = [
    "random+vanilla",
    "dense+vanilla",
    "random+dense",
    "factorized_random+factorized_dense",
    "factorized_dense+random+vanilla",
]
EVERY = FUNCTIONS + MIXTURES
