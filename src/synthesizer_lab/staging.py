"""Locks, and temporary folders in which files are written before they move to their place."""

from __future__ import annotations

import errno
import glob
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from filelock import FileLock, Timeout

# The lock file of a folder; it stays, and means nothing while no process holds it.
LOCK = ".lock"
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
    """A new folder inside a temporary one in `home`; those with this prefix of killed processes are removed."""
    # Folders of others have no lock file.
    for path in home.glob(f"{glob.escape(prefix)}????????/{LOCK}"):
        with suppress(OSError), lock_file(path, BlockingIOError("its process is alive")) as lock:
            if lock is not None:
                shutil.rmtree(path.parent, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=home, prefix=prefix, ignore_cleanup_errors=True) as folder:
        lock = None
        while lock is None:
            # Another process may remove the folder while it has no lock; the lock makes it again.
            with suppress(FileNotFoundError, FileExistsError):
                lock = lock_file(Path(folder) / LOCK)
        with lock:
            new = Path(folder) / "new"
            new.mkdir(parents=True)
            yield new
