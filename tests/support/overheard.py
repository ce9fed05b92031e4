"""
All that the processes of one run of the tests have said, and what may be in none of it (contract 9).

The daemons and the operators' commands hand in their output as they end; the fixtures tell which tokens,
keys, payloads and callback queries they used.  ``tests/integration/lab/test_secrets.py``, last of all,
searches it.  The daemon filters no level out: what it logs at debug level is in its output like the rest.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from attrs import define, field, frozen

PAYLOAD = f"payload-{secrets.token_hex(12)}"
"""Is in every message that the stand-in Bot API hands out."""
QUERY = f"query={secrets.token_hex(12)}"
"""The query of the callback URLs that `Gateway.subscribe` registers."""


@frozen
class Said:
    """The whole output of one process."""

    by: str
    text: str


@frozen
class Leak:
    """A secret in an output; neither is shown, only where they meet."""

    kind: str
    by: str
    line: int


@define
class Overheard:
    """Outputs, and secrets by their kind."""

    said: list[Said] = field(factory=list)
    secrets: dict[str, str] = field(factory=dict, repr=False)
    """Secret to kind."""

    def must_not_show(self, kind: str, *values: str) -> None:
        for value in values:
            assert len(value) >= 16, f"too short to be told from other text: a {kind}"
            self.secrets[value] = kind

    def hear(self, by: str, text: str) -> None:
        if text:
            self.said.append(Said(by, text))

    def leaks(self) -> Iterator[Leak]:
        for said in self.said:
            for value, kind in self.secrets.items():
                if (at := said.text.find(value)) >= 0:
                    yield Leak(kind, said.by, said.text.count("\n", 0, at) + 1)


OVERHEARD = Overheard()
"""Of this run of the tests."""
OVERHEARD.must_not_show("payload", PAYLOAD)
OVERHEARD.must_not_show("callback query", QUERY.partition("=")[2])
