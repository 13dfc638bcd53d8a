"""A command on a terminal of its own: what it prints there, and what it reads."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import termios
import time
from collections.abc import Mapping, Sequence


def on_terminal(
    argv: Sequence[str],
    env: Mapping[str, str],
    keys: bytes = b"",
    *,
    after: bytes = b"",
    rows: int = 40,
    columns: int = 100,
    timeout: float = 30,
) -> tuple[int, bytes]:
    """Runs `argv` with a terminal as its input and output, and types `keys` once it has printed `after`.
    Returns its exit code and everything it printed."""
    child, end = pty.fork()
    if child == 0:
        try:
            fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            os.execvpe(argv[0], list(argv), dict(env))
        finally:
            os._exit(127)
    out = b""
    until = time.monotonic() + timeout
    try:
        while time.monotonic() < until:
            if keys and after in out:
                os.write(end, keys)
                keys = b""
            if not select.select([end], [], [], 0.2)[0]:
                continue
            try:
                data = os.read(end, 65536)
            except OSError:  # the other end is closed
                break
            if not data:
                break
            out += data
        else:
            os.kill(child, 9)
    finally:
        os.close(end)
        _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), out
