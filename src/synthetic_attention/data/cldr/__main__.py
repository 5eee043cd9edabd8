"""python -m synthetic_attention.data.cldr: write the corpus into a folder."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ...errors import UserError
from .corpus import write_cldr_corpus


def _main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m synthetic_attention.data.cldr",
        description="Write an English-German corpus made from the locale data that Babel carries.",
    )
    parser.add_argument("folder", type=Path, help="where to write {train,valid,test,test_templates}.{en,de}")
    parser.add_argument("--train", type=int, default=15_000, help="phrases to train on (default: %(default)s)")
    parser.add_argument("--held-out", type=int, default=500, help="phrases in each other split (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of all choices (default: %(default)s)")
    options = parser.parse_args()
    try:
        write_cldr_corpus(options.folder, options.train, options.held_out, options.seed)
    except (UserError, OSError) as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    _main()
