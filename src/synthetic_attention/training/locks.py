"""Locks that keep two processes out of one folder."""

from __future__ import annotations

import errno
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from filelock import FileLock, Timeout

from ..tasks import UserError

__all__ = ["LOCK", "hold"]

# The name of the file in a folder; it stays there, and means nothing while nobody holds it.
LOCK = ".lock"
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


def hold(folder: Path, taken: str) -> AbstractContextManager[object]:
    """The lock of a folder, which is held till the context ends, or the process.

    Where the file system knows no locks it is as if nobody else were there.

    Raises:
        UserError: another process holds it; `taken` is the message.
    """
    try:
        return FileLock(folder / LOCK).acquire(timeout=0)
    except Timeout:
        raise UserError(taken) from None
    except (OSError, NotImplementedError) as error:
        if isinstance(error, OSError) and error.errno not in _NO_LOCKS:
            raise
        return nullcontext()
