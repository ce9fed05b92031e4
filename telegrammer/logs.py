"""
Log lines: text or JSON, one event a line, foreign text made harmless, secrets taken out (contract 9).

Nothing that knows a secret should log it; ``Redactor`` is the last defence, for the exception text of a
library or a line that nobody foresaw.  It is given the token and knows the shapes of keys and tokens; what
the database holds of secrets it learns when that is opened.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from traceback import extract_tb
from typing import Any, Protocol
from urllib.parse import quote

from attrs import define, frozen
from twisted.logger import (
    ILogObserver,
    LogEvent,
    LogLevel,
    eventAsText,
    formatEvent,
    globalLogBeginner,
    globalLogPublisher,
)
from twisted.python.failure import Failure
from zope.interface import implementer

MESSAGE_LIMIT = 4000
"""Characters of a message, a field or a line of a traceback."""
TRACEBACK_LIMIT = 20_000
REMOVED = "[removed]"

_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff\\]")
_SHAPES = re.compile(
    r"(?<![0-9])[0-9]{5,19}(?::|%3A)[A-Za-z0-9_-]{30,}"  # a bot token
    r"|(?<![0-9A-Za-z])[0-9a-fA-F]{64}(?![0-9A-Za-z])"  # a key, or its digest
    r"|(?<=/bot)[0-9]+(?::|%3A)[^/\s\"']+"  # a token in a path of the Bot API
    r"|(?i:(?<=bearer )[^\s,;\"']{8,})"
)


def escaped(text: str, limit: int = 200) -> str:
    """
    Foreign text fit for a line: controls, bidirectional marks, lone surrogates and the backslash as escapes,
    cut after ``limit`` characters with ``...``.
    """
    cut = text[: limit + 1]
    safe = _UNSAFE.sub(lambda found: found[0].encode("unicode_escape", "backslashreplace").decode(), cut)
    return safe if len(text) <= limit and len(safe) <= limit else safe[:limit] + "..."


def whence(error: BaseException | None) -> str:
    """What kind of error, and where it was raised; never its text, which may carry anything."""
    frames = extract_tb(None if error is None else error.__traceback__)
    where = f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}"


class Redactor:
    """Takes secrets out of text: those it is given, and whatever is shaped like a key or a token."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._spellings: set[str] = set()
        self._known: re.Pattern[str] | None = None
        for secret in secrets:
            self.learn(secret)

    def learn(self, secret: str) -> None:
        """From now on, this too: a secret that was found, or made, after the log had begun."""
        # A token's part after the colon is as good as the whole.
        for part in (secret, secret.partition(":")[2]):
            if part:
                self._spellings |= {part, quote(part, safe=""), repr(part)[1:-1]}
        longest_first = sorted(self._spellings, key=len, reverse=True)
        # One assignment: events come from every thread.
        self._known = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def __call__(self, text: str) -> str:
        known = self._known
        if known is not None:
            text = known.sub(REMOVED, text)
        return _SHAPES.sub(REMOVED, text)

    def __repr__(self) -> str:
        return "Redactor()"


# -- what a line says ---------------------------------------------------------------------------------


@frozen
class _Record:
    time: str
    level: str
    namespace: str
    message: str
    error: str | None
    traceback: str | None


# What Twisted and its legacy logging put into an event for themselves.
_PLUMBING = frozenset(
    ("isError", "failure", "message", "time", "system", "format", "why", "warning", "category", "filename")
)


def _record(event: LogEvent, redact: Redactor) -> _Record:
    failure, level = event.get("log_failure", event.get("failure")), event.get("log_level")
    error = traceback = None
    if isinstance(failure, Failure):
        error = getattr(failure.type, "__name__", "unknown")
        traceback = redact(failure.getTraceback())[-TRACEBACK_LIMIT:]
    return _Record(
        time=_time(event.get("log_time")),
        level=level.name if level is not None else LogLevel.info.name,
        namespace=escaped(redact(str(event.get("log_namespace") or "-")), 100),
        message=escaped(redact(_message(event)), MESSAGE_LIMIT),
        error=error,
        traceback=traceback,
    )


def _fields(event: LogEvent, redact: Redactor) -> dict[str, str | int | float | bool | None]:
    """The event's own scalar fields."""
    fields: dict[str, str | int | float | bool | None] = {}
    for name, value in event.items():
        if name.startswith("log_") or name in _PLUMBING or not isinstance(name, str):
            continue
        if isinstance(value, str):
            fields[name] = escaped(redact(value), MESSAGE_LIMIT)
        elif value is None or type(value) in (bool, int, float):
            fields[name] = value
    return fields


def _message(event: LogEvent) -> str:
    if "log_failure" not in event and isinstance(event.get("failure"), Failure):
        # Of Twisted's old log; its text is the whole traceback.
        text = event.get("why")
    else:
        text = formatEvent(event)
    if not text:
        return "unexpected failure" if "log_failure" in event or "failure" in event else ""
    return str(text).rstrip("\n")


def _time(seconds: object) -> str:
    """ISO 8601 in UTC, with milliseconds."""
    moment = datetime.fromtimestamp(seconds if isinstance(seconds, int | float) else 0.0, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def json_line(event: LogEvent, redact: Redactor) -> str:
    """One JSON object: time, level, namespace, message, the scalar fields, and of a failure its traceback."""
    record = _record(event, redact)
    line: dict[str, Any] = {
        "time": record.time,
        "level": record.level,
        "namespace": record.namespace,
        "message": record.message,
    }
    if record.error is not None:
        line["error"] = record.error
        line["traceback"] = escaped_lines(record.traceback or "")
    for name, value in _fields(event, redact).items():
        # NaN and infinity are no JSON.
        odd = isinstance(value, float) and (value != value or value in (float("inf"), float("-inf")))
        line.setdefault(escaped(redact(name), 100), str(value) if odd else value)
    return json.dumps(line, ensure_ascii=False) + "\n"


def escaped_lines(text: str) -> str:
    """As ``escaped``, line by line; the line feeds stay."""
    return "\n".join(escaped(line, MESSAGE_LIMIT) for line in text.split("\n"))


def text_lines(event: LogEvent, redact: Redactor) -> str:
    """``TIME LEVEL NAMESPACE: message``; a traceback follows in lines of the same form."""
    record = _record(event, redact)
    head = f"{record.time} {record.level.upper():<8} {record.namespace}: "
    lines = [record.message if record.error is None else f"{record.message} ({record.error})"]
    if record.traceback is not None:
        lines += ["  " + escaped(line, MESSAGE_LIMIT) for line in record.traceback.splitlines() if line]
    return "".join(f"{head}{line}\n" for line in lines)


# -- observers ----------------------------------------------------------------------------------------

LINES: dict[str, Callable[[LogEvent, Redactor], str]] = {"text": text_lines, "json": json_line}
"""``--log-format`` to what makes its lines."""


class LineStream(Protocol):
    """Where lines go: a text stream, or one of Twisted's log files."""

    def write(self, text: str, /) -> object: ...

    def flush(self) -> object: ...


@implementer(ILogObserver)
@define(eq=False)
class LineObserver:
    """Writes each event of at least level info to ``stream``, and flushes.  It never raises."""

    stream: LineStream
    render: Callable[[LogEvent, Redactor], str]
    redact: Redactor

    def __call__(self, event: LogEvent) -> None:
        if event.get("log_level") is LogLevel.debug:
            return
        try:
            line = self.render(event, self.redact)
        except Exception as error:
            line = (
                f'{{"level": "error", "message": "a log event could not be shown: {type(error).__name__}"}}\n'
            )
        try:
            self.stream.write(line)
            self.stream.flush()
        except (OSError, ValueError):
            # Whoever read the log is gone; that must not stop the daemon.
            pass


def line_observer(form: str, stream: LineStream, secrets: Iterable[str] = ()) -> LineObserver:
    """An observer that writes lines of ``form`` to ``stream``, whatever its encoding."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    return LineObserver(stream, LINES[form], Redactor(secrets))


def start_logging(form: str, stream: LineStream, secrets: Iterable[str] = ()) -> Redactor:
    """
    Begin the process's logging to ``stream``, once.

    :param form: ``text`` or ``json``.
    :param secrets: texts that must not appear (the token).
    :returns: what takes them out, to ``learn`` of more.
    """
    observer = line_observer(form, stream, secrets)
    globalLogBeginner.beginLoggingTo([observer])
    return observer.redact


@implementer(ILogObserver)
@define(eq=False)
class RedactingFilter:
    """
    Takes secrets out of an event in place, for observers that are not ours (twistd's own log).

    Observers are called in the order they were added, all with the same event: this one has to be the first.
    An event without a secret is left as it is.
    """

    redact: Redactor

    def __call__(self, event: LogEvent) -> None:
        try:
            text = eventAsText(event, includeTimestamp=False, includeSystem=False)
            clean = self.redact(text)
        except Exception:
            return
        for name, value in event.items():
            if isinstance(value, str) and not name.startswith("log_"):
                event[name] = self.redact(value)
        if clean == text:
            return
        for name in ("log_failure", "failure", "isError", "message", "format", "log_flattened", "why"):
            event.pop(name, None)
        event["log_format"], event["log_text"] = "{log_text}", clean


def redact_all_logs(secrets: Iterable[str]) -> Redactor:
    """
    Redact every event of the process; to be called before another log observer is added.

    :returns: what does it, to ``learn`` of more.
    """
    redact = Redactor(secrets)
    globalLogPublisher.addObserver(RedactingFilter(redact))
    return redact
