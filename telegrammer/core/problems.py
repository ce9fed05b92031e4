"""
The exceptions of the product, under one root.

An expected outcome is a value (see ``core.telegram``, ``core.delivery``); an exception here means "I could
not do my job".  Each docstring tells the operator what to do.  None of them carries a URL, a token, a
payload or the text of another exception.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

DatabaseState = Literal["ok", "busy", "full", "readonly", "failing"]
"""What ``/health`` says of the database (contract 2.3)."""


class TelegrammerError(Exception):
    """The root: catch this at a border to answer for everything that is ours."""


class InvalidRequest(TelegrammerError):
    """A caller's request breaks a rule.  Nothing was done; the caller has to mend ``field``."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class SubscriptionLimit(TelegrammerError):
    """A registration would exceed a limit.  Remove some, or raise ``--max-subscriptions[-per-key]``."""


class UnknownKey(TelegrammerError):
    """The caller's key was deleted while the request was under way (401).  Use another key."""


class CapacityReached(TelegrammerError):
    """
    The queue has no room for a batch; nothing of it was written.

    Passes by itself when jobs leave; raise ``--max-jobs``, mend slow receivers, or delete dead jobs.
    """


class MalformedUpdate(TelegrammerError):
    """
    An update of a supported kind cannot be understood; its whole batch was refused and the cursor stays.

    The operator may step over it with ``telegrammer skip-update ID`` when ``update_id`` is known.
    """

    def __init__(self, update_id: int | None, why: str) -> None:
        super().__init__(why)
        self.update_id = update_id
        self.why = why


class UnknownEntry(TelegrammerError):
    """The journal has no such entry, or no longer: it was folded, and its retention is over."""


class OutOfTurn(TelegrammerError):
    """
    An entry of the journal cannot be folded before an older one, which still waits; nothing was done.

    Passes by itself when the daemon has folded the older ones, or ``telegrammer replay`` has.
    """


class StorageUnavailable(TelegrammerError):
    """The database could not do the work, which was rolled back whole.  The subclasses say why."""

    state: ClassVar[DatabaseState] = "failing"


class StoreBusy(StorageUnavailable):
    """Another process held the database for longer than we wait.  Passes by itself: a circumstance."""

    state = "busy"


class StoreFull(StorageUnavailable):
    """The disk is full.  Free space; the daemon goes on by itself."""

    state = "full"


class StoreReadOnly(StorageUnavailable):
    """The database or its directory cannot be written.  Mend mount or owner; the daemon goes on by itself."""

    state = "readonly"


class StoreFailing(StorageUnavailable):
    """SQLite reports an I/O error or a damaged file.  Look at the disk; restore a backup if it stays."""

    state = "failing"


class StoreDamaged(StoreFailing):
    """The file holds what SQLite did not write.  Stop the daemon, look at the disk, restore a backup."""


class StoreMoved(StoreFailing):
    """
    The file was removed, or another was put in its place: what is done with it now would be lost.

    Put it back, and the daemon goes on by itself; restart the daemon to have it use what is there now.  While
    it runs, it holds what was removed: ``/proc/PID/fd``.
    """


class StoreClosed(StorageUnavailable):
    """The database was closed, by the daemon's stop, before this operation began."""


class StartRefused(TelegrammerError):
    """The daemon or a command cannot start as configured; the message is the one line to show."""


class SettingsRefused(StartRefused):
    """
    Settings are unknown, malformed or contradict one another; ``problems`` has a line for each.

    ``usage``: what was typed on the command line is (also) at fault.
    """

    def __init__(self, problems: tuple[str, ...], usage: bool = False) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems
        self.usage = usage


class LockHeld(StartRefused):
    """Another process holds ``<db>.lock``: a daemon already runs on this database.  Stop that one first."""


class UnknownSchema(StartRefused):
    """The file is no database of ours, or of a newer version.  It was not touched; name another ``--db``."""


class MigrationRefused(StartRefused):
    """Old rows break the new layout's rules.  The file was not touched; the message names the rows."""


class WrongBot(TelegrammerError):
    """
    The database belongs to another bot than the token's.

    Give the token of the bot named in the message, or another ``--db``: cursor and ids are the bot's own.
    """

    def __init__(self, bound: int, found: int) -> None:
        super().__init__(f"the database belongs to bot {bound}, the token to bot {found}")
        self.bound = bound
        self.found = found


class DeliveriesRefused(TelegrammerError):
    """
    ``retry-delivery`` or ``delete-delivery`` was given ids it cannot act on; nothing was done to any.

    Look the ids up with ``list-failed-deliveries``; wait for those in flight to come back.
    """

    def __init__(self, unknown: Sequence[int], in_flight: Sequence[int] = ()) -> None:
        said = [
            f"{what}: {', '.join(str(each) for each in ids[:20])}{', …' if len(ids) > 20 else ''}"
            for what, ids in (("no such delivery", unknown), ("in flight", in_flight))
            if ids
        ]
        super().__init__("; ".join(said))
        self.unknown = tuple(unknown)
        self.in_flight = tuple(in_flight)


# -- messaging (contract 7) ------------------------------------------------------------------------------


class MessagingError(TelegrammerError):
    """The root of what ``telegrammer.messaging`` raises."""


class MessageRefused(MessagingError):
    """
    A message breaks a limit; nothing was stored or sent.  Mend the message: ``limit`` names what it breaks,
    ``"subject"``, ``"body"``, ``"recipients"``, ``"recipient"``, ``"record"`` (all of it together) or, of a
    mark beside it, ``"mark"``.
    """

    def __init__(self, limit: str, why: str) -> None:
        super().__init__(why)
        self.limit = limit


class DirectiveRefused(MessagingError):
    """A declaration is unknown, repeated, missing or malformed.  Mend it; ``directive`` names the setting."""

    def __init__(self, directive: str, why: str) -> None:
        super().__init__(why)
        self.directive = directive


class RegistryRefused(MessagingError):
    """
    A registry's providers contradict one another (a name twice, a reserved name, none of that name).

    What was published before stays published.  Mend the declarations; ``names`` has those at fault.
    """

    def __init__(self, why: str, names: Sequence[str] = ()) -> None:
        super().__init__(why)
        self.names = tuple(names)


class UnknownProvider(RegistryRefused):
    """No published provider has this name.  Declare or bind it, then ``validate()``."""


class CredentialsRefused(MessagingError):
    """
    Credentials were given where none are taken (the outbox stores none), or none where the transport needs
    them.  Nothing was stored, and nobody was dialled.
    """


class OutboxError(MessagingError):
    """The root of what an outbox raises for what it found in its file."""


class InsecurePath(OutboxError):
    """
    The outbox's file or directory is not private, or not on a local disk; it was not touched.

    The message names the path and what to mend: owner, mode (0600 in a directory that others cannot write),
    no symbolic link, an absolute path, a local file system.
    """


class NotAnOutbox(OutboxError):
    """The file is no outbox, or one of a newer version; it was not touched.  Name another path."""


class QueueEmpty(OutboxError):
    """No message of this queue can be claimed *now*; leased ones may come back.  Ask again later."""


class QueueFull(OutboxError):
    """
    The file holds as many messages as it may, over all its queues; nothing was stored or deleted.

    Let a worker acknowledge some.
    """


class LeaseLost(OutboxError):
    """
    The lease is not, or no longer, the current one of this message in this queue; nothing was changed.

    It expired, was given back, was acknowledged before, or never was.  What was sent under it may be sent
    again by another worker: give the receiver the means to tell, and deliver faster.
    """


class AdmissionTimeout(OutboxError):
    """
    The operation did not get the file within its time; nothing was changed, and the handle stays usable.

    Another process reads or writes it.  Try again, or give ``timeout`` more.
    """


class CommitUncertain(OutboxError):
    """
    A COMMIT failed: the operation may have happened, or not.  The handle is closed.

    Open the file anew, and look before doing the same again: a message may be there twice otherwise.
    """


class OutboxFailing(OutboxError):
    """SQLite could not do the work (disk full, I/O error, read-only, damage); it was rolled back whole."""


class OutboxClosed(OutboxError):
    """The handle is closed.  Open another."""


class DeliveryFailed(MessagingError):
    """
    The message was certainly not delivered: no connection, no TLS, refused before or instead of its data.

    ``permanent``: the peer said so for good (5xx); the same again is of no use.
    """

    def __init__(self, why: str, permanent: bool = False) -> None:
        super().__init__(why)
        self.permanent = permanent


class MaybeDelivered(MessagingError):
    """
    The exchange ended after the message's data had begun to go out: the peer may have taken it.

    Do not send again at once; under a lease, let it expire.  The Message-ID tells a repeat.
    """
