"""Running the `git` program: a clean environment, every exit code looked at, names as the bytes that they are."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from beyond.errors import GitFailed, UsageError
from beyond.text import one_line

#: Said in every call, whatever the user's configuration says: nothing of the user's runs and nothing is logged.
QUIET = (
    "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "core.logAllRefUpdates=false",
    "-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "advice.detachedHead=false",
    "-c", "commit.gpgSign=false", "-c", "submodule.recurse=false", "-c", "core.quotePath=true",
)  # fmt: skip

_OBJECT = re.compile(r"(?:[0-9a-f]{40}|[0-9a-f]{64})\Z")


def clean_environment(extra: Mapping[str, str | Path] | None = None) -> dict[str, str]:
    """The environment without any GIT_* variable that was inherited, plus ours and `extra`."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env.pop("LANGUAGE", None)
    env |= {
        "LC_ALL": "C",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_LITERAL_PATHSPECS": "1",
        # A partial clone would fetch what it lacks: no protocol is allowed, so that it fails instead.
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_ALLOW_PROTOCOL": "none",
    }
    return env | {name: os.fspath(value) for name, value in (extra or {}).items()}


def object_id(text: str) -> str:
    """`text`, if it is a whole object id: ids from a journal are never options or names of something else."""
    if not _OBJECT.match(text):
        raise UsageError(f"{one_line(text, 80)!r} is not a git object id: give 40 or 64 hex digits")
    return text


def names(output: bytes) -> list[str]:
    """The names in the output of a command that was given -z; os.fsencode turns them back."""
    return [os.fsdecode(name) for name in output.split(b"\0") if name]


def lines(paths: Iterable[str]) -> bytes:
    """The names as input of a command that was given -z."""
    return b"".join(os.fsencode(path) + b"\0" for path in paths)


def path_list(path: Path) -> str:
    """A folder as an element of GIT_ALTERNATE_OBJECT_DIRECTORIES: quoted where a colon would split it."""
    plain = os.fspath(path)
    if ":" not in plain and not plain.startswith('"') and "\n" not in plain:
        return plain
    quoted = plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{quoted}"'


class Git:
    """The program, bound to an environment and a folder."""

    def __init__(self, cwd: Path, env: Mapping[str, str | Path] | None = None) -> None:
        self.cwd = cwd
        self.env = clean_environment(env)

    def also(self, env: Mapping[str, str | Path]) -> Git:
        """The same with more variables."""
        other = Git.__new__(Git)
        other.cwd = self.cwd
        other.env = self.env | {name: os.fspath(value) for name, value in env.items()}
        return other

    def start(self, *args: str, stdin: bool = False) -> Running:
        """The command, running."""
        try:
            process = subprocess.Popen(
                ["git", *QUIET, *args],
                cwd=self.cwd,
                env=self.env,
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except FileNotFoundError:
            if not self.cwd.is_dir():
                raise GitFailed(f"{one_line(str(self.cwd))} is not a folder any more: nothing was done") from None
            raise GitFailed("git is not on the PATH: install it, or record without checkpoints (--no-git)") from None
        except OSError as error:
            raise GitFailed(f"git can't be run ({error.strerror}): look at {one_line(str(self.cwd))}") from None
        return Running(process, args)

    def run(self, *args: str, stdin: bytes | None = None, ok: Sequence[int] = (0,)) -> bytes:
        """What the command printed. GitFailed unless it ended with one of `ok`."""
        return self.start(*args, stdin=stdin is not None).output(stdin, ok)

    def ask(self, *args: str, stdin: bytes | None = None) -> tuple[int, bytes, str]:
        """Exit code, output and error text of a command that may say no."""
        return self.start(*args, stdin=stdin is not None).all(stdin)


class Running:
    """A git process that goes on beside us."""

    def __init__(self, process: subprocess.Popen[bytes], args: Sequence[str]) -> None:
        self._process = process
        self._args = args

    def all(self, stdin: bytes | None = None) -> tuple[int, bytes, str]:
        """Waits: exit code, output, error text."""
        try:
            out, err = self._process.communicate(stdin)
        except BaseException:
            self.stop()
            raise
        return self._process.returncode, out, os.fsdecode(err)

    def output(self, stdin: bytes | None = None, ok: Sequence[int] = (0,)) -> bytes:
        """Waits for the output. GitFailed unless it ended with one of `ok`."""
        code, out, err = self.all(stdin)
        if code not in ok:
            raise failed(self._args, code, err)
        return out

    def stop(self) -> None:
        """Ends the process, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


def failed(args: Sequence[str], code: int, err: str) -> GitFailed:
    """The error for a git command that ended with `code`."""
    words = next((arg for arg in args if not arg.startswith("-") and "=" not in arg), "git")
    return GitFailed(
        f"git {words} failed ({said_by_git(err, code)}): nothing was changed; look at the repository with `git status`"
    )


def said_by_git(err: str, code: int) -> str:
    """The first line in which git says what was wrong; how it ended, where it says nothing."""
    kept = [line for line in err.splitlines() if line.strip() and not line.startswith(("hint:", "warning:"))]
    fatal = [line for line in kept if line.startswith(("fatal:", "error:"))]
    ended = f"ended by signal {-code}" if code < 0 else f"exit {code}"
    return one_line((fatal or kept or [ended])[0], 200)


def ref_value(common_dir: Path, git: Git, ref: str) -> str | None:
    """The object id of a ref; None where there is none. Reads the files where it can: a process takes a tenth of the
    time that a checkpoint has."""
    try:
        value = (common_dir / ref).read_text().strip()
        if _OBJECT.match(value):
            return value
    except (OSError, ValueError):
        pass
    try:
        for line in (common_dir / "packed-refs").read_bytes().splitlines():
            if line.endswith(b" " + os.fsencode(ref)):
                return line.partition(b" ")[0].decode()
    except OSError:
        pass
    code, out, _ = git.ask("rev-parse", "--verify", "-q", "--end-of-options", ref)
    return out.decode().strip() if code == 0 else None


def ignored(git: Git, paths: Iterable[str]) -> set[str]:
    """Which of `paths` git ignores (a folder has a slash at its end)."""
    # check-ignore knows no literal pathspecs; a name behind ./ has no magic either.
    bare = git.also({"GIT_LITERAL_PATHSPECS": "0"})
    code, out, err = bare.ask("check-ignore", "-z", "--stdin", stdin=lines(f"./{path}" for path in paths))
    if code not in (0, 1):
        raise failed(("check-ignore",), code, err)
    return {name[2:] for name in names(out)}
