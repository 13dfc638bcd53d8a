"""Every failure that a user can meet.

The docstring of a class is the form of its message, ``exit_code`` is what ``bnd`` ends with.
Messages are one line: what is wrong, then what to do about it.
"""

from __future__ import annotations


class BeyondError(Exception):
    """what is wrong: what to do"""

    exit_code = 2


class UsageError(BeyondError):
    """the words of the command don't fit together: how to say it"""


class NotFound(BeyondError):
    """no such run, file or event: where to look"""


class Ambiguous(BeyondError):
    """TEXT fits several runs: ID, ID, …: give more of the id"""


class JournalError(BeyondError):
    """FILE can't be used as a journal: what to do; the file was not changed"""


class JournalBusy(JournalError):
    """FILE is being written by another process: try again when it is done"""


class NewerJournal(JournalError):
    """FILE was made by a newer beyond (format N): upgrade with `pip install -U beyond-ai`"""


class JournalDamaged(JournalError):
    """FILE is damaged at PLACE: restore a copy, or save what is readable with `sqlite3 FILE .recover`"""

    exit_code = 1


class SourceError(BeyondError):
    """FILE can't be read as a transcript: what it is and what would be accepted"""


class Blocked(BeyondError):
    """FILE is being read by another process: end it and run the command again"""

    exit_code = 1


class Refused(BeyondError):
    """refused for safety: why, and what would make it safe"""

    exit_code = 3


class NotARepository(BeyondError):
    """DIR is not a git work tree of its own: where checkpoints can be taken"""


class GitFailed(BeyondError):
    """git COMMAND failed (its own words): what to do"""


class CheckpointMissing(NotFound):
    """the tree or commit of a checkpoint is not in the repository: what may have removed it"""


class CheckpointBusy(Blocked):
    """another checkpoint of DIR is being taken: try again when it is done"""
