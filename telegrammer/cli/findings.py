"""What ``telegrammer check`` says of one thing."""

from __future__ import annotations

from typing import Literal

from attrs import frozen

from telegrammer.logs import escaped


@frozen
class Finding:
    """One line: the verdict on one thing, and why."""

    verdict: Literal["ok", "FAIL", "skip"]
    name: str
    detail: str

    def __str__(self) -> str:
        return f"{self.verdict:<4} {self.name}: {escaped(self.detail, 1000)}"


def skipped(*names: str, first: str = "the settings") -> list[Finding]:
    """Things that were not looked at, since something else is wrong."""
    return [Finding("skip", name, f"{first} must be right first") for name in names]
