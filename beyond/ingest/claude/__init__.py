"""Claude Code (2.1.x): its store, its records, its conversations.

Format facts were found by running 2.1.218, 2.1.276 and 2.1.332 (see DECISIONS.md, "Claude Code"): one line a content
block, tied into a tree by ``uuid`` and ``parentUuid``; file order is not causal.
"""

from beyond.ingest.claude.reader import ClaudeIngester
from beyond.ingest.claude.records import content_of
from beyond.ingest.claude.store import encode_path

__all__ = ["ClaudeIngester", "content_of", "encode_path"]
