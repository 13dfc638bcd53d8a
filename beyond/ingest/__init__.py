"""Readers of the agent CLIs' transcripts: bytes in, events out. No storage, no I/O beyond reading."""
