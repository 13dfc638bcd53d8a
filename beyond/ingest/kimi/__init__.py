"""Kimi Code's transcripts: ``sessions/wd_<slug>_<hash>/<conversation>/agents/<agent>/wire.jsonl``.

Format facts: the wires of 0.28.0, 0.29.0 (protocol 1.4) and 2.1.0 (1.5) in ``tests/fixtures/kimi``; where these are
silent, the engine's public source (MoonshotAI/kimi-code: record types, origins, undo, deferral of messages).

The file is a linear log: a record with events is a node that hangs on the one before it. Three things bend the line:
`context.undo` goes back before a prompt; a message that comes while calls are open is a step after their results (the
engine defers it); a call written after the result of a sibling doesn't depend on that result.
"""

from beyond.ingest.kimi.reader import KimiIngester
from beyond.ingest.kimi.records import content_of

__all__ = ["KimiIngester", "content_of"]
