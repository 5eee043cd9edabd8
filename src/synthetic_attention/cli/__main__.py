"""`python -m synthetic_attention.cli`: the command, where it is not installed."""

from . import main

main()
