"""The project's own benchmark: generated data and measuring helpers."""
