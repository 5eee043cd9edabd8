"""Locks, and temporary folders in which files are written before they move to their place."""

from __future__ import annotations

import glob
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from filelock import FileLock, Timeout

# The lock file of a folder; it stays, and means nothing while no process holds it.
LOCK = ".lock"


def lock_file(path: Path, refusal: Exception | None = None) -> AbstractContextManager[object]:
    """Wait for a lock, or raise `refusal` if another process has it; it is None on a file system without locks."""
    try:
        return FileLock(path).acquire(timeout=-1 if refusal is None else 0)
    except Timeout:
        raise (refusal or OSError()) from None
    # A file system without locks. Whatever else is wrong shows when the first file is written.
    except (OSError, NotImplementedError):
        return nullcontext()


@contextmanager
def staged(home: Path, prefix: str) -> Iterator[Path]:
    """A new folder inside a temporary one in `home`; those with this prefix, which killed processes left, are removed.

    Only one process at a time may use a prefix.
    """
    for left in home.glob(f"{glob.escape(prefix)}????????"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=home, prefix=prefix, ignore_cleanup_errors=True) as folder:
        # Unlike the temporary folder, it can be read by others.
        (new := Path(folder) / "new").mkdir()
        yield new
