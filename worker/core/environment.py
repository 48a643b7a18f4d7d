"""Removes secrets from a process's environment, so that author code cannot read them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable


def forget(names: Iterable[str]) -> None:
    """Removes variables and wipes the memory shown as /proc/PID/environ.

    Children forked afterwards do not have them either.
    """
    library = ctypes.CDLL(None)
    library.getenv.restype = ctypes.c_void_p
    library.getenv.argtypes = [ctypes.c_char_p]
    for name in names:
        if name not in os.environ:
            continue
        address = library.getenv(name.encode())
        if address:
            # Not with zeros: readers of the environment take an empty entry for its end.
            ctypes.memset(address, ord("*"), len(os.environb[name.encode()]))
        del os.environ[name]
