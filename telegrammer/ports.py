"""
The sockets in the wall: what each room needs of the world, as protocols.

Everything that waits returns an ``Awaitable`` (a Deferred or a coroutine).  Every port backed by the
database raises ``core.problems.StorageUnavailable`` when the work could not be done; it was then rolled
back whole.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from twisted.internet.defer import Deferred

from telegrammer.core.delivery import AttemptResult, Claimed, Finished, QueueCounts, Slots, Turn
from telegrammer.core.exchange import Reply
from telegrammer.core.folding import Folded
from telegrammer.core.ingestion import Cursor, Ingested
from telegrammer.core.journal import Accepted, JournalCounts, Late, Pending, Place
from telegrammer.core.leases import Leased
from telegrammer.core.messages import Credentials, Mark, Message
from telegrammer.core.problems import DatabaseState
from telegrammer.core.subscriptions import Subscription
from telegrammer.core.telegram import (
    Batch,
    IdentityOutcome,
    PollOutcome,
    SendOutcome,
    SettingOutcome,
    WebhookOutcome,
)

Now = Callable[[], float]
"""Wall-clock Unix seconds.  For waiting, take an ``IReactorTime`` instead."""

Jitter = Callable[[], float]
"""A random number in [0, 1): the share of the largest jitter to add."""


class Exchange(Protocol):
    """One bounded HTTP exchange with the Bot API: no redirect, no repetition, no cookies."""

    def exchange(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        seconds: float,
        limit: int,
    ) -> Deferred[Reply]:
        """
        Ask once.  Cancelling it, like every failure, closes the connection.

        :param seconds: from the name look-up to the last byte.
        :param limit: bytes of the answer's body.
        :raises ExchangeFailed: no complete answer came (``core.exchange`` has the kinds).
        """
        ...


class TelegramApi(Protocol):
    """The Bot API.  Never raises for what the peer or the network does: that is an outcome."""

    def get_me(self) -> Awaitable[IdentityOutcome]: ...

    def get_webhook_info(self) -> Awaitable[WebhookOutcome]: ...

    def set_webhook(self, url: str, secret: str) -> Awaitable[SettingOutcome]:
        """Have updates pushed there, each with the secret; what waits at Telegram stays."""
        ...

    def delete_webhook(self) -> Awaitable[SettingOutcome]:
        """Have nothing pushed any more; what waits at Telegram stays."""
        ...

    def get_updates(self, offset: int | None, limit: int) -> Awaitable[PollOutcome]:
        """One long poll, from the head of what waits when ``offset`` is None; cancelling aborts it."""
        ...

    def send_message(self, chat_id: int, text: str) -> Awaitable[SendOutcome]:
        """At most one ``sendMessage`` on the wire, whatever happens."""
        ...


class Keys(Protocol):
    def owner_of(self, digest: bytes) -> Awaitable[int | None]:
        """The id of the key whose SHA-256 is ``digest``, or None."""
        ...


class Subscriptions(Protocol):
    def add(self, owner: int, chat_id: int, callback_url: str) -> Awaitable[int]:
        """
        The id of the owner's subscription, new or already there; committed.

        :raises SubscriptionLimit: a new one would exceed a limit.
        :raises UnknownKey: the owner's key was deleted meanwhile.
        """
        ...

    def of(self, owner: int) -> Awaitable[Sequence[Subscription]]:
        """The owner's, in id order."""
        ...

    def remove(self, owner: int, subscription_id: int) -> Awaitable[bool]:
        """Remove it and its jobs; False when the owner has none of that id."""
        ...


class Usernames(Protocol):
    def chat_of(self, username: str) -> Awaitable[int | None]:
        """The private chat last seen under this (normalised) username."""
        ...


class Ingestion(Protocol):
    def bind(self, bot_id: int) -> Awaitable[None]:
        """
        Bind the database to the bot, once and for good.

        :raises WrongBot: it belongs to another.
        """
        ...

    def cursor(self) -> Awaitable[Cursor]: ...

    def accept(self, batch: Batch) -> Awaitable[Ingested]:
        """
        Write a batch in one transaction: observations, jobs, migrations, cursor.

        :raises CapacityReached: it does not fit.
        :raises MalformedUpdate: an element is malformed, and neither marked to be skipped nor put aside.
        """
        ...

    def fold(self, entry_id: int) -> Awaitable[Folded]:
        """
        Fold an entry of the journal in one transaction: observation, jobs, migration, the entry's status.

        One that is folded stays so, and nothing is done.  One that has failed is tried again.

        :raises UnknownEntry: there is none.
        :raises OutOfTurn: it waits behind an older one.
        :raises CapacityReached: it does not fit.
        :raises MalformedUpdate: it cannot be understood.
        :raises StoreBusy: it could not *begin* in its time; one that has begun is waited for to its end.
        """
        ...


class Journal(Protocol):
    """Pushed updates, as they came (contract 8)."""

    def accept(self, update_id: int, body: bytes) -> Awaitable[Accepted]:
        """Write one, once; committed."""
        ...

    def fail(self, entry_id: int, reason: str) -> Awaitable[int | None]:
        """
        What it holds cannot be folded: the id of its update.

        None: it was folded meanwhile, and stays so, or it is there no longer.
        """
        ...

    def pending(self, after: Place = ..., limit: int = ...) -> Awaitable[Sequence[Pending]]:
        """Entries that wait, in the order of folding, strictly behind ``after``; empty: there are none."""
        ...

    def counts(self) -> Awaitable[JournalCounts]: ...

    def late(self, accepted_until: int) -> Awaitable[Late]:
        """Those that wait since then (Unix seconds) or longer; what it costs grows with what waits."""
        ...

    def let_go(self) -> Awaitable[int]:
        """Let go of what is kept no longer; how many *failed* entries were among it, for lack of room."""
        ...


class UpdateIntake(Protocol):
    """Takes what Telegram pushes; part of ``ingest.webhook``."""

    def accept(self, body: bytes) -> Awaitable[Accepted]:
        """
        Returns once the update is safe.

        :raises InvalidRequest: the body is no update.
        :raises StorageUnavailable: the database could not, or not in time; Telegram will repeat it.
        """
        ...


class Deliveries(Protocol):
    def turn(self, finished: Sequence[Finished], slots: Slots, now: Now) -> Awaitable[Turn]:
        """
        Write the finished attempts and claim what may go, in one transaction.

        :param now: the clock by which the stored times are; read in a thread, when the transaction begins.

        A finished attempt whose job was removed or reset meanwhile changes nothing.  When this raises,
        nothing was written: the caller keeps the finished attempts and hands them in again.
        """
        ...

    def counts(self) -> Awaitable[QueueCounts]: ...

    def purge_dead(self) -> Awaitable[int]:
        """Delete dead jobs past their retention, and the oldest beyond the limits; how many."""
        ...

    def shift_times(self, seconds: int) -> Awaitable[None]:
        """The wall clock jumped by so much: move what is waited for along with it."""
        ...


class Callbacks(Protocol):
    def post(self, job: Claimed) -> Deferred[AttemptResult]:
        """One bounded POST of the job.  Never raises for what the peer or the network does."""
        ...


class Storage(Protocol):
    """How the database is doing, for ``/health``; a look at memory, no I/O."""

    def state(self) -> DatabaseState: ...


class Outbox(Protocol):
    """A durable queue of notifications, in a file of its own (contract 7.2; the errors: ``OutboxError``)."""

    def send(self, message: Message, *, marks: Sequence[Mark] = ()) -> Awaitable[str]:
        """
        The id of the message, durably accepted: committed, together with the marks.

        :raises QueueFull: there is no room; nothing was stored, no mark either.
        :raises AdmissionTimeout: nothing was changed.
        :raises CommitUncertain: it may have been stored.
        """
        ...

    def marks(self) -> Awaitable[Mapping[str, Mark]]:
        """The last mark of each subject in this queue."""
        ...

    def claim(self) -> Awaitable[Leased]:
        """
        The oldest available message of this queue, leased for 60 s.

        :raises QueueEmpty: none is available now.
        """
        ...

    def acknowledge(self, message_id: str, lease: str) -> Awaitable[None]:
        """
        Delete it, delivered.

        :raises LeaseLost: the lease is not the current one; nothing was changed.
        """
        ...

    def release(self, message_id: str, lease: str) -> Awaitable[None]:
        """
        Make it available again at once.

        :raises LeaseLost: the lease is not the current one; nothing was changed.
        """
        ...

    def outstanding(self) -> Awaitable[int]:
        """Messages in the file, all queues together, leased or not."""
        ...

    def oldest_at(self) -> Awaitable[int | None]:
        """When the oldest of them was accepted, in Unix seconds; None: there are none."""
        ...


class Mailer(Protocol):
    """Whatever carries a message to its recipients: e-mail, files."""

    def send(
        self,
        message: Message,
        *,
        message_id: str,
        seconds: float,
        credentials: Credentials | None = None,
    ) -> Deferred[None]:
        """
        One attempt, at most ``seconds`` long.  Cancelling it, like every failure, closes the connection.

        :param message_id: of the outbox; a repeat of the message has the same.
        :raises CredentialsRefused: they are missing; nobody was dialled.
        :raises DeliveryFailed: it was certainly not delivered.
        :raises MaybeDelivered: it may have been.
        """
        ...
