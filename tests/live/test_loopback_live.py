"""Nothing of a live test leaves the machine: every address that the real CLIs try is on loopback."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.live.clis import PATIENCE, Agent

_ADDRESS = re.compile(r'inet_addr\("([^"]+)"\)|inet_pton\(AF_INET6, "([^"]+)"')


@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace to watch the CLI's sockets with")
def test_no_other_address_is_tried(agent: Agent, tmp_path: Path) -> None:
    log = tmp_path / "sockets.txt"
    watch = ["strace", "-f", "-qq", "-e", "trace=connect,sendto,sendmsg,sendmmsg", "-o", str(log)]
    if subprocess.run([*watch, "true"], capture_output=True).returncode != 0:
        pytest.skip("strace may not trace here")
    for prompt in ("remember GOLDENHAWK", "delegate this"):
        resume = next(iter(agent.conversations()), None)
        argv = [*watch, "-A", *agent.argv(prompt, resume=resume)]
        done = subprocess.run(
            argv, cwd=agent.repo, env=agent.env, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE
        )
        assert done.returncode == 0, done.stderr.decode()
    tried = {four or six for four, six in _ADDRESS.findall(log.read_text("utf-8", "replace"))}
    assert {address for address in tried if not address.startswith("127.") and address != "::1"} == set()
    assert tried  # the model's own address was seen: the watch works
