"""How an outbox is declared: its queue, its file, its patience (contract 7.2)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from attrs import field, frozen

from telegrammer.messaging.directives import (
    absolute_path,
    checked,
    duration,
    parse_directives,
    provider_name,
    timeout,
)


def _file(value: str | Path) -> Path:
    path = absolute_path(value)
    if not path.name:
        raise ValueError("must name a file")
    return path


def _to_name(value: Any) -> str:
    return str(checked("name", provider_name, value))


def _to_path(value: Any) -> Path:
    return Path(checked("path", _file, value))


def _to_timeout(value: Any) -> float:
    return float(checked("timeout", timeout, value))


@frozen
class SQLiteMessagingConfig:
    """
    Where an outbox lies, and which of the queues in it is meant.

    :param name: of the provider, and of its queue in the file.
    :param path: absolute; looked at only when the outbox is opened.
    :param timeout: seconds, 0.001 to 30, within which an operation must have got the file.
    :raises DirectiveRefused: one is malformed; ``directive`` names it.
    """

    name: str = field(converter=_to_name)
    path: Path = field(converter=_to_path)
    timeout: float = field(default=1.0, converter=_to_timeout)

    @classmethod
    def from_directives(cls, directives: Iterable[str]) -> Self:
        """
        Of ``name``, ``path`` and perhaps ``timeout`` (``1ms`` to ``30s``); no file is touched.

        :raises DirectiveRefused: one is unknown, repeated, missing or malformed.
        """
        required = {"name": provider_name, "path": _file}
        return cls(**parse_directives(directives, required, {"timeout": duration}))
