"""`python -m beyond` is `bnd`."""

from __future__ import annotations

from beyond.cli import main

if __name__ == "__main__":
    main()
