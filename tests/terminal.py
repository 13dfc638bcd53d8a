"""A command on a terminal of its own: what it prints there, and what it reads."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


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
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen(  # Ctrl-C comes only to whom the terminal belongs
        argv, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True,
        preexec_fn=_take_terminal,  # noqa: PLW1509
    )  # fmt: skip
    os.close(theirs)
    out = b""
    until = time.monotonic() + timeout
    try:
        while time.monotonic() < until:
            if keys and after in out:
                os.write(ours, keys)
                keys = b""
            if not select.select([ours], [], [], 0.1)[0]:
                continue
            try:
                data = os.read(ours, 65536)
            except OSError:  # nobody holds the other end
                break
            if not data:
                break
            out += data
        else:
            process.kill()
    finally:
        os.close(ours)
    return process.wait(), out
