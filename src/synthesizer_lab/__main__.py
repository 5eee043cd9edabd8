"""`python -m synthesizer_lab`: the command, where it is not installed."""

from .cli import main

main()
