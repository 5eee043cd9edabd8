"""Time of a whole attention layer: every variant against PyTorch's own, side by side.

    python benchmarks/attention.py [OPTIONS]

The same as `synthesizer benchmark attention`, whose options it takes.
"""

from __future__ import annotations

import sys

from synthetic_attention.cli import main

if __name__ == "__main__":
    main(["benchmark", "attention", *sys.argv[1:]])
