"""
All that the processes of one run of the tests have said, and what may be in none of it (contract 9).

The daemons and the operators' commands hand in their output as they end; the fixtures tell which tokens,
keys, payloads and callback queries they used.  ``tests/integration/lab/test_secrets.py``, last of all,
searches it.  The daemon filters no level out: what it logs at debug level is in its output like the rest.

Where several processes share the tests among them, each writes what it heard into the directory
``$TELEGRAMMER_OVERHEARD``; ``python -m tests.support.overheard`` searches all of it when they have ended.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

from attrs import define, field, frozen

VARIABLE = "TELEGRAMMER_OVERHEARD"
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
    file: Path | None = None
    """Where all of it is written down as well, a JSON array a line."""

    def must_not_show(self, kind: str, *values: str) -> None:
        for value in values:
            assert len(value) >= 16, f"too short to be told from other text: a {kind}"
            if value not in self.secrets:
                self.secrets[value] = kind
                self._note("secret", kind, value)

    def hear(self, by: str, text: str) -> None:
        if text:
            self.said.append(Said(by, text))
            self._note("said", by, text)

    def write_down(self) -> None:
        """From now on, if the environment says where: in the processes that run tests, not in their peers."""
        directory = os.environ.get(VARIABLE)
        if directory:
            self.file = Path(directory, f"{os.getpid()}.jsonl")
            for value, kind in self.secrets.items():
                self._note("secret", kind, value)

    def _note(self, *words: str) -> None:
        if self.file is not None:
            with self.file.open("a") as notes:
                notes.write(json.dumps(words) + "\n")

    def leaks(self) -> Iterator[Leak]:
        for said in self.said:
            for value, kind in self.secrets.items():
                if (at := said.text.find(value)) >= 0:
                    yield Leak(kind, said.by, said.text.count("\n", 0, at) + 1)


def read(directory: Path) -> Overheard:
    """What several processes wrote down."""
    whole = Overheard()
    for file in directory.glob("*.jsonl"):
        for line in file.read_text().splitlines():
            what, name, text = json.loads(line)
            if what == "secret":
                whole.must_not_show(name, text)
            else:
                whole.hear(name, text)
    return whole


OVERHEARD = Overheard()
"""Of this process."""
OVERHEARD.must_not_show("payload", PAYLOAD)
OVERHEARD.must_not_show("callback query", QUERY.partition("=")[2])


def main(directory: str) -> int:
    """Search; the exit status says whether there was something to search and nothing was found."""
    whole = read(Path(directory))
    leaks = list(whole.leaks())
    print(f"{len(whole.said)} outputs, {len(whole.secrets)} secrets, {len(leaks)} found")
    for leak in leaks[:20]:
        print(f"a {leak.kind} in line {leak.line} of what {leak.by} said")
    return 0 if whole.said and not leaks else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
