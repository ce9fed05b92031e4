"""
Carries the outbox to the operator: claim, send, acknowledge (contract 7.4).

``carry`` is the step of a ``service.Repeating``: one message.  What fails stays leased until its lease
expires, so a broken mail server is asked about once a minute for each notice, and a mail that may have
arrived is not repeated at once.
"""

from __future__ import annotations

from typing import Final

from attrs import define, field
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from telegrammer.core.leases import LEASE_SECONDS, Leased
from telegrammer.core.messages import Credentials
from telegrammer.core.notices import OLDEST
from telegrammer.core.problems import CommitUncertain, LeaseLost, OutboxError, QueueEmpty
from telegrammer.notices.handle import PAUSE, Handle, kind_of, pause_after, words_of
from telegrammer.ports import Mailer, Now
from telegrammer.service import Wakeup

log = Logger()

IDLE: Final = 5.0
"""Seconds between two looks into an empty outbox; leases expire, and what was left by a kill with them."""
RESERVE: Final = 8.0
"""Seconds of the lease that are left for the acknowledgement."""
AGAIN: Final = 1.0
"""Seconds between two tries to acknowledge."""


@define(eq=False)
class Carrier:
    """
    One message at a time, the oldest first.

    :param credentials: for each delivery call; None where the transport needs none.
    :param timeout: seconds for one delivery, as configured; the lease may leave less.
    """

    handle: Handle
    mailer: Mailer
    credentials: Credentials | None
    timeout: float
    clock: IReactorTime
    now: Now
    failure: str | None = field(default=None, init=False)
    """The kind of what the last delivery failed by; None: it did not."""
    _sending: Deferred[None] | None = field(default=None, init=False)
    _rest: Wakeup = field(init=False)
    """Between two tries to acknowledge."""
    _stopped: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._rest = Wakeup(self.clock)

    def stop(self) -> None:
        """Give up the delivery in hand, which closes its connection; take no other."""
        self._stopped = True
        self._rest.ring()
        if self._sending is not None:
            self._sending.cancel()

    def resume(self) -> None:
        """Carry again after `stop`."""
        self._stopped = False
        self._rest = Wakeup(self.clock)

    async def carry(self) -> float:
        """One message, if there is one; seconds until the next step."""
        began = self.clock.seconds()
        try:
            leased = await self.handle.use(lambda outbox: outbox.claim(), "carrier")
        except QueueEmpty:
            return IDLE
        except OutboxError as error:
            # The handle has told of it.
            return pause_after(error)
        if self._stopped:
            # It stays leased; the next life of the daemon gets it when the lease has expired.
            return IDLE
        left = self._left(leased)
        if self.now() - leased.created_at > OLDEST:
            log.warn("a notice older than 24 h was dropped, undelivered: {id}", id=leased.id)
        else:
            seconds = min(self.timeout, left - RESERVE)
            if seconds <= 0:
                return IDLE
            if not await self._deliver(leased, seconds):
                return PAUSE
        await self._acknowledge(leased, began + left)
        return 0.0

    def _left(self, leased: Leased) -> float:
        """Seconds of the lease; a clock that was set just now makes it no longer than it can be."""
        expires_at = leased.lease_expires_at
        return 0.0 if expires_at is None else min(LEASE_SECONDS, expires_at - self.now())

    async def _deliver(self, leased: Leased, seconds: float) -> bool:
        try:
            self._sending = self.mailer.send(
                leased.message, message_id=leased.id, seconds=seconds, credentials=self.credentials
            )
            await self._sending
        except Exception as error:
            if not self._stopped:
                self._fails(error)
            return False
        finally:
            self._sending = None
        if self.failure is not None:
            log.info("notices are carried again")
        self.failure = None
        return True

    def _fails(self, error: Exception) -> None:
        """One line when it begins."""
        if self.failure is None:
            log.warn("notices cannot be carried, and wait: {why}", why=words_of(error))
        self.failure = kind_of(error)

    async def _acknowledge(self, leased: Leased, until: float) -> None:
        """Try until the lease expires; then the message is carried again, with the same Message-ID."""
        lease = leased.lease or ""
        uncertain = False
        while True:
            try:
                return await self.handle.use(lambda outbox: outbox.acknowledge(leased.id, lease), "carrier")
            except LeaseLost:
                if not uncertain:
                    log.warn("the lease of a notice was lost; it may be carried twice: {id}", id=leased.id)
                return
            except OutboxError as error:
                uncertain = uncertain or isinstance(error, CommitUncertain)
            if self._stopped or self.clock.seconds() + AGAIN >= until:
                log.warn("a notice could not be acknowledged; it may be carried twice: {id}", id=leased.id)
                return
            await self._rest.rest(AGAIN)
