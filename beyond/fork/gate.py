"""May a conversation be written natively for the program that is installed here? The shipped table says so, or a proof."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from beyond import agents
from beyond.journal import home

#: Seconds that a program may take to say its version.
_PATIENCE = 30


@dataclass(frozen=True, slots=True)
class Installed:
    """An agent CLI on this machine. `hash` is the sha256 of the file that is run."""

    cli: str
    path: Path
    version: str
    hash: str


@dataclass(frozen=True, slots=True)
class Gate:
    """Whether surgery is open for a CLI, and why or why not."""

    cli: str
    open: bool
    reason: str
    installed: Installed | None = None
    proof: Mapping[str, Any] | None = None


def installed(cli: str) -> Installed | None:
    """The program that a user of this machine would start, or None."""
    path = shutil.which(agents.row(cli).program)
    return _look_at(cli, path) if path else None


@cache
def _look_at(cli: str, path: str) -> Installed:
    real = Path(os.path.realpath(path))
    digest = hashlib.sha256()
    with real.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return Installed(cli, Path(path), _version(path), digest.hexdigest())


def _version(path: str) -> str:
    """What a program says its version is. It runs with nothing of the user's: a scratch home, no variables."""
    with tempfile.TemporaryDirectory(prefix="bnd-version-") as scratch:
        env = {"HOME": scratch, "PATH": os.environ.get("PATH", os.defpath), "NO_COLOR": "1", "DISABLE_AUTOUPDATER": "1"}
        try:
            done = subprocess.run(
                [path, "--version"], env=env, cwd=scratch, capture_output=True, text=True, timeout=_PATIENCE,
                stdin=subprocess.DEVNULL, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return "?"
    words = (done.stdout or done.stderr).split()
    return next((word for word in words if word[:1].isdigit()), "?")


def proof_path(program: Installed) -> Path:
    """Where the outcome of a proof of this program, for this writer, is kept. It is never imported from a journal."""
    version = agents.writer(program.cli).VERSION
    return home() / "proofs" / f"{program.cli}-{program.hash[:16]}-w{version}.json"


def keep_proof(program: Installed, certificate: Mapping[str, Any]) -> Path:
    """Opens or closes the gate of a program by the outcome of a proof."""
    path = proof_path(program)
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    scratch = path.with_suffix(f".{os.getpid()}")
    scratch.write_text(json.dumps(certificate, indent=1))
    os.replace(scratch, path)
    return path


def _proof(program: Installed) -> Mapping[str, Any] | None:
    try:
        proof = json.loads(proof_path(program).read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(proof, dict) or proof.get("hash") != program.hash:
        return None
    return proof


def gate(cli: str) -> Gate:
    """The state of a CLI's gate."""
    row = agents.row(cli)
    if row.surgery is None:
        return Gate(cli, False, f"there is no writer for {row.title}")
    program = installed(cli)
    if program is None:
        return Gate(cli, False, f"{row.program} is not on the PATH, so its version is not known")
    proof = _proof(program)
    if proof is not None:
        if proof.get("passed") is True:
            return Gate(cli, True, f"{program.version} was proven here at {proof.get('time')}", program, proof)
        leaked = proof.get("failure") or "a check failed"
        reason = f"the proof of {program.version} failed here ({leaked})"
        return Gate(cli, False, reason, program, proof)
    if program.version in row.verified:
        return Gate(cli, True, f"{program.version} is in the shipped table", program)
    known = ", ".join(row.verified)
    reason = f"{row.title} {program.version} is not verified (the table has {known}; `bnd doctor --prove {cli}` proves it here)"
    return Gate(cli, False, reason, program)


def format_known(cli: str, version: str | None) -> str | None:
    """Why a transcript's own version is not one whose format is known here, or None."""
    row = agents.row(cli)
    if version is None or version in row.formats or version in row.verified:
        return None
    program = installed(cli)
    if program is not None and program.version == version and gate(cli).open:
        return None
    low, high = _numbers(row.formats[0]), _numbers(row.formats[-1])
    numbers = _numbers(version)
    if numbers and low <= numbers <= high:
        return None
    return f"the transcript was written by {row.title} {version}, whose format is not known here"


def _numbers(version: str) -> tuple[int, ...]:
    words = version.split("-", maxsplit=1)[0].split(".")
    return tuple(int(word) for word in words) if all(word.isascii() and word.isdigit() for word in words) else ()
