"""``python -m telegrammer``: the command, for an interpreter whose script directory is not on the path."""

from __future__ import annotations

import sys

from telegrammer.cli import main

if __name__ == "__main__":
    sys.exit(main())
