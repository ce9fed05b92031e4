"""What is told of a trouble in the same words, whichever way updates come."""

from __future__ import annotations

from twisted.logger import Logger

from telegrammer.core.standing import Crashed, OtherBot, StorageFailed
from telegrammer.core.telegram import BadCredentials, NetworkFailure, UpstreamFailure


def why_of(event: object) -> str | None:
    """Our own words for what happened, where the event carries some."""
    if isinstance(event, NetworkFailure | UpstreamFailure | StorageFailed | Crashed):
        return event.why
    return None


def code_of(event: object) -> int | None:
    """What tells one suspension from another of the same reason: the status, or the bot that was found."""
    if isinstance(event, BadCredentials):
        return event.status
    return event.found if isinstance(event, OtherBot) else None


def tell_refused_token(log: Logger, doing: str, event: object) -> None:
    """
    :param doing: "polling", or what else is suspended.
    """
    log.error(
        "{doing} is suspended: Telegram refuses the token ({status}); take a valid one from "
        "@BotFather, put it in the token file and restart; meanwhile getMe is asked again",
        doing=doing,
        status=code_of(event),
    )


def tell_other_bot(log: Logger, doing: str, event: object) -> None:
    """As above."""
    log.error(
        "{doing} is suspended: getMe names bot {found}, but token or database belong to bot "
        "{expected}; give that bot's token, or another --db",
        doing=doing,
        found=code_of(event),
        expected=event.expected if isinstance(event, OtherBot) else None,
    )
