"""Locks, and temporary folders in which files are written before they move to their place."""

from __future__ import annotations

import errno
import glob
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from filelock import FileLock, Timeout

# The lock file of a folder; it stays, and means nothing while no process holds it.
LOCK = ".lock"
_DAY = 86_400
# The errors of a file system without locks.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


def lock_file(path: Path, refusal: Exception | None = None) -> AbstractContextManager[object]:
    """Wait for a lock, or raise `refusal` if another process has it; it is None on a file system without locks."""
    try:
        return FileLock(path).acquire(timeout=-1 if refusal is None else 0)
    except Timeout:
        raise (refusal or OSError()) from None
    except (OSError, NotImplementedError) as error:
        if isinstance(error, OSError) and error.errno not in _NO_LOCKS:
            raise
        return nullcontext()


@contextmanager
def staged(home: Path, prefix: str) -> Iterator[Path]:
    """A new folder inside a temporary one in `home`; those with this prefix of killed processes last for a day."""
    for left in home.glob(f"{glob.escape(prefix)}????????"):
        # Another process may remove its own, or the same one.
        with suppress(FileNotFoundError):
            if left.stat().st_mtime < time.time() - _DAY:
                shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=home, prefix=prefix, ignore_cleanup_errors=True) as folder:
        # With the permissions of a usual folder.
        (new := Path(folder, "new")).mkdir()
        yield new
