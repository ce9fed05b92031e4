"""
Messages to people: a durable outbox, e-mail, files; a library of its own (contract 7).

A producer puts a ``Message`` into an ``Outbox`` and goes on; a worker, in the same process or another, claims
it under a lease, delivers it, and acknowledges.  ::

    config = SQLiteMessagingConfig.from_directives(["name alerts", "path /var/lib/x/outbox.db", "timeout 2s"])
    outbox = await Outbox.open(config)
    await outbox.send(Message("Disk full", "on host a", ["operator@example.org"]))

    leased = await outbox.claim()
    ...
    await outbox.acknowledge(leased.id, leased.lease)

``docs/messaging.md`` has the guarantees and a complete example.  Every operation returns a Deferred, and
fails with a ``MessagingError`` whose docstring says what to do.
"""

from __future__ import annotations

from telegrammer.core.leases import Leased
from telegrammer.core.messages import Credentials, Mark, Message
from telegrammer.core.problems import (
    AdmissionTimeout,
    CommitUncertain,
    CredentialsRefused,
    DeliveryFailed,
    DirectiveRefused,
    InsecurePath,
    LeaseLost,
    MaybeDelivered,
    MessageRefused,
    MessagingError,
    NotAnOutbox,
    OutboxClosed,
    OutboxError,
    OutboxFailing,
    QueueEmpty,
    QueueFull,
    RegistryRefused,
    UnknownProvider,
)
from telegrammer.messaging.email import EmailConfig, EmailProvider
from telegrammer.messaging.file import FileConfig, FileProvider
from telegrammer.messaging.outbox import Outbox
from telegrammer.messaging.registry import Declaration, Provider, Registry
from telegrammer.messaging.sqlite_config import SQLiteMessagingConfig

__all__ = [
    "AdmissionTimeout",
    "CommitUncertain",
    "Credentials",
    "CredentialsRefused",
    "Declaration",
    "DeliveryFailed",
    "DirectiveRefused",
    "EmailConfig",
    "EmailProvider",
    "FileConfig",
    "FileProvider",
    "InsecurePath",
    "LeaseLost",
    "Leased",
    "Mark",
    "MaybeDelivered",
    "Message",
    "MessageRefused",
    "MessagingError",
    "NotAnOutbox",
    "Outbox",
    "OutboxClosed",
    "OutboxError",
    "OutboxFailing",
    "Provider",
    "QueueEmpty",
    "QueueFull",
    "Registry",
    "RegistryRefused",
    "SQLiteMessagingConfig",
    "UnknownProvider",
]
