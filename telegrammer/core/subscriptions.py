"""A subscription and a key as values (contract 2.2, 3)."""

from __future__ import annotations

from attrs import field, frozen


@frozen
class Subscription:
    """A callback URL's interest in a chat."""

    id: int
    chat_id: int
    callback_url: str = field(repr=False)
    """Canonical; its query is a secret."""


@frozen
class SubscriptionLimits:
    """``--max-subscriptions-per-key`` and ``--max-subscriptions``."""

    per_key: int = 100
    total: int = 1000


@frozen
class KeyRecord:
    """A key as ``list-keys`` shows it."""

    name: str
    created_at: int
    legacy: bool = False
    """Migrated from the C++ program: still valid, to be rotated."""
