"""The arguments of a Bot API call, by whichever of its four roads they came."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from attrs import frozen
from twisted.web.iweb import IRequest

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}\Z", re.ASCII)


@frozen
class Arguments:
    """
    Query, form, multipart or JSON (core.telegram.org/bots/api#making-requests).

    A number may come as text, a list as JSON text: the Bot API takes both.
    """

    values: Mapping[str, object]

    @classmethod
    def of(cls, request: IRequest) -> Arguments:
        """
        Read them; a JSON body wins over the query.

        :raises ValueError: the body is no JSON object, or no UTF-8.
        """
        values: dict[str, object] = {}
        for name, given in (request.args or {}).items():
            values[name.decode()] = given[-1].decode()
        kind = (request.getHeader("Content-Type") or "").partition(";")[0].strip().lower()
        if kind == "application/json":
            body = json.loads(request.content.read().decode())
            if not isinstance(body, dict):
                raise ValueError("not an object")
            values.update(body)
        return cls(values)

    def text(self, name: str) -> str:
        value = self.values.get(name, "")
        return value if isinstance(value, str) else json.dumps(value)

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        """Within its bounds; what is no number counts as 0, as Telegram has it."""
        if name not in self.values:
            return default
        text = self.text(name)
        return max(low, min(high, int(text) if _INTEGER.match(text) else 0))

    def flag(self, name: str) -> bool:
        return self.text(name).lower() in ("true", "yes", "1")

    def names(self, name: str) -> frozenset[str] | None:
        """A list of words; None when it was not given or is no list."""
        value = self.values.get(name)
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                return None
        return frozenset(map(str, value)) if isinstance(value, list) else None
