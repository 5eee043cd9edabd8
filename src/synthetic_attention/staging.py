"""Locks, and temporary folders in which files are written before they move to their place."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from .errors import UserError

# The lock file of a folder; it stays, and means nothing while no process holds it.
LOCK = ".lock"
# The errors of a file system without locks.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


def lock_folder(folder: Path, message: str) -> AbstractContextManager[object]:
    """Lock a folder until the context or the process ends; no effect, and None, on a file system without locks."""
    try:
        return FileLock(folder / LOCK).acquire(timeout=0)
    except Timeout:
        raise UserError(message) from None
    except (OSError, NotImplementedError) as error:
        if isinstance(error, OSError) and error.errno not in _NO_LOCKS:
            raise
        return nullcontext()


@contextmanager
def staged(home: Path, prefix: str) -> Iterator[Path]:
    """The folder "new" in a temporary one in `home`, which is locked until the context or the process ends."""
    with ExitStack() as stack:
        is_locked = False
        while not is_locked:
            made = tempfile.TemporaryDirectory(dir=home, prefix=prefix, ignore_cleanup_errors=True)
            folder = Path(stack.enter_context(made))
            # Before it has a lock, `remove_left` of another process may take it.
            with suppress(UserError, FileNotFoundError):
                stack.enter_context(lock_folder(folder, "taken"))
                is_locked = folder.exists()
        (folder / "new").mkdir()
        yield folder / "new"


def remove_left(home: Path, pattern: str, replaced: Path | None = None) -> None:
    """Remove the folders of `staged` that killed processes left; "old" in one becomes `replaced` if that is gone."""
    for folder in home.glob(pattern):
        with suppress(UserError, OSError), lock_folder(folder, "its process is alive") as lock:
            if replaced is not None and (folder / "old").exists() and not replaced.exists():
                # Killed between the two steps of a replacement.
                (folder / "old").rename(replaced)
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
