"""
What the Bot API says, as values (contract 2.1, 5.2, 5.4).

``core.envelope`` and ``core.updates`` make these of a status and bytes; ``core.exchange`` has what an
exchange of bytes itself can come to.

Source of the shapes: core.telegram.org/bots/api, "Making requests", ``Update``, ``ResponseParameters``.
"""

from __future__ import annotations

from attrs import field, frozen

# -- one update ---------------------------------------------------------------------------------------


@frozen
class Message:
    """The supported member of an update, and the little of it that the gateway acts on."""

    chat_id: int
    chat_type: str
    text: bytes
    """The message's JSON text, byte for byte as Telegram sent it."""
    username: str | None = None
    """``chat.username`` of a private chat, ASCII-lowercased; None when absent."""
    username_is_odd: bool = False
    """True when a ``username`` was there that no username can be: it teaches nothing."""
    migrate_to_chat_id: int | None = None
    migrate_from_chat_id: int | None = None


@frozen
class Update:
    """A well-formed element of ``getUpdates``; ``message`` is None for every unsupported kind."""

    update_id: int
    message: Message | None = None


@frozen
class Malformed:
    """An element that breaks contract 5.2; ``update_id`` is None when even that cannot be read."""

    update_id: int | None
    why: str
    text: bytes = field(default=b"", repr=False)
    """The element's JSON text, byte for byte."""


# -- what a poll (or getMe) brought -------------------------------------------------------------------


@frozen
class Batch:
    """A validated envelope of ``getUpdates``, in the order of arrival; elements may be malformed."""

    elements: tuple[Update | Malformed, ...] = ()


@frozen
class Identity:
    """Who the token's bot is (``getMe``)."""

    bot_id: int
    username: str | None = None
    can_read_all_group_messages: bool | None = None


@frozen
class WebhookInfo:
    """``getWebhookInfo``: ``host`` of the webhook that is set, or None."""

    host: str | None
    pending_update_count: int = 0
    url: str = field(default="", repr=False)
    """The whole of it, to be compared with ours; path and query are often secret."""
    last_error_at: int | None = None
    """Unix seconds by Telegram's clock: when a call of the webhook last failed."""
    last_error: str | None = None
    """Telegram's words for it, sanitised."""


@frozen
class NetworkFailure:
    """Nothing usable came: resolving, connecting, TLS, a lost connection, the deadline.  ``why`` is ours."""

    why: str


@frozen
class UpstreamFailure:
    """An answer that is not one: 5xx, HTML, truncated, oversized, no envelope, any other ``ok:false``."""

    why: str


@frozen
class RateLimited:
    """429; ``retry_after`` in whole seconds when Telegram gave a valid one (1 to 86,400)."""

    retry_after: int | None = None


@frozen
class BadCredentials:
    """401, 404 or 421: the token is revoked, malformed, or not this server's."""

    status: int


@frozen
class Conflict:
    """409: a webhook is set (``webhook``), or another process polls the same bot."""

    webhook: bool


Refused = NetworkFailure | UpstreamFailure | RateLimited | BadCredentials | Conflict
PollOutcome = Batch | Refused
IdentityOutcome = Identity | Refused
WebhookOutcome = WebhookInfo | Refused

# -- what a method brought that only does something ----------------------------------------------------


@frozen
class Done:
    """Telegram did it (``setWebhook``, ``deleteWebhook``)."""


# -- what a sendMessage brought -----------------------------------------------------------------------


@frozen
class Sent:
    """Telegram took the message; ``envelope`` is its successful answer, byte for byte."""

    envelope: bytes


@frozen
class Rejected:
    """400 or 403 with an envelope; ``description`` is sanitised and at most 256 characters."""

    description: str | None = None
    migrate_to_chat_id: int | None = None


@frozen
class Misbehaved:
    """Any other answer (502 UPSTREAM_ERROR)."""


@frozen
class Unavailable:
    """DNS, connect, TLS, or the connection was lost (502 UPSTREAM_UNAVAILABLE)."""


@frozen
class TimedOut:
    """The deadline passed; the message may have been sent (504 UPSTREAM_TIMEOUT)."""


SettingOutcome = Done | Rejected | Refused
SendOutcome = Sent | Rejected | RateLimited | Misbehaved | Unavailable | TimedOut
