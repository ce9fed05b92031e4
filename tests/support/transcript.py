"""What ``telegrammer demo`` says; ``python -m tests.support.transcript FILE`` checks a transcript."""

from __future__ import annotations

import re
import sys
from pathlib import Path

TRANSCRIPT = r"""Telegrammer's demo: no token, no network; all of it happens on 127\.0\.0\.1\.
 1\. a stand-in for Telegram's Bot API listens on http://127\.0\.0\.1:\d+
 2\. a callback receiver listens on http://127\.0\.0\.1:\d+/hook
 3\. telegrammer add-key demo: prints a key, once \(not shown here\)
 4\. telegrammer serve: listening on http://127\.0\.0\.1:\d+
 5\. POST /subscribe, chat 1001: 200, subscription 1
 6\. Ada writes "Hello, gateway! 👋": the callback gets the message, \d+ bytes, equal to Telegram's byte for byte; delivery id 123456789-1-0-100001; answered 200
 7\. POST /send, chat_id 1001: the Bot API gets "Hello, Ada!"; 200 with its answer, \d+ bytes, unchanged
 8\. POST /send, username ada: the Bot API gets "You told me your name\."; 200 with its answer, \d+ bytes, unchanged
 9\. Ada writes "Are you awake\?": the receiver answers 503; after [1-9]\.\d s it gets the same \d+ bytes with the same delivery id 123456789-1-0-100002; answered 200
10\. GET /health: 200, ok; ingestion polling; 0 pending, 0 in flight, 0 dead
11\. SIGTERM: the daemon ends with status 0 after \d\.\d s
Nothing is left behind\. Done in \d\.\d s\.
"""  # noqa: E501  # a transcript is not wrapped


def main(file: str) -> None:
    said = Path(file).read_text(encoding="utf-8")
    if re.fullmatch(TRANSCRIPT, said) is None:
        raise SystemExit(f"the demo's transcript is not the one expected:\n{said}")


if __name__ == "__main__":
    main(sys.argv[1])
