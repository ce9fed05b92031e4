"""What a handler's failure means to its caller, and to the log."""

from __future__ import annotations

import traceback

from twisted.logger import Logger
from twisted.python.failure import Failure
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from telegrammer.core.problems import TelegrammerError
from telegrammer.web import responses
from telegrammer.web.responses import Response

log = Logger()


def answer_to(failure: Failure) -> Response:
    """The answer; what nobody foresaw is a 500 and one line that says where, without the failure's text."""
    match failure.value:
        case MethodNotAllowed(valid_methods=allowed):
            return responses.method_not_allowed(allowed or ())
        case HTTPException():
            return responses.NOT_FOUND
        case TelegrammerError() as error:
            answer = responses.from_problem(error)
        case _:
            answer = responses.INTERNAL_ERROR
    if answer is responses.INTERNAL_ERROR:
        log.error(
            "a request failed unexpectedly: {kind} at {where}",
            kind=type(failure.value).__name__,
            where=_where(failure),
        )
    return answer


def _where(failure: Failure) -> str:
    """The way to the fault without its text: an exception's message may quote what no log should hold."""
    frames = traceback.extract_tb(failure.getTracebackObject())
    return " > ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in frames)
