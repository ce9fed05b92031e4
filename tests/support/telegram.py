"""Stand-ins for the ports of ingestion: each call is a record and the Deferred that answers it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from attrs import define, field, frozen
from twisted.internet.defer import Deferred, succeed

from telegrammer.core.exchange import Reply
from telegrammer.core.folding import Folded
from telegrammer.core.ingestion import Cursor, Ingested, plan
from telegrammer.core.journal import BEGINNING, Pending, Place
from telegrammer.core.problems import UnknownEntry, WrongBot
from telegrammer.core.telegram import (
    Batch,
    IdentityOutcome,
    PollOutcome,
    SendOutcome,
    SettingOutcome,
    WebhookOutcome,
)

T = TypeVar("T")


@define(eq=False)
class FakeApi:
    """Implements ``ports.TelegramApi``.  The lists hold the questions that wait for the test's answer."""

    me: list[Deferred[IdentityOutcome]] = field(factory=list)
    webhooks: list[Deferred[WebhookOutcome]] = field(factory=list)
    polls: list[Deferred[PollOutcome]] = field(factory=list)
    sends: list[Deferred[SendOutcome]] = field(factory=list)
    settings: list[Deferred[SettingOutcome]] = field(factory=list)
    """Of either method that sets or deletes a webhook."""
    asked: list[tuple[int | None, int]] = field(factory=list)
    """Offset and limit of every poll so far."""
    sent: list[tuple[int, str]] = field(factory=list)
    hooks: list[tuple[str, str] | None] = field(factory=list)
    """URL and secret of every webhook that was set; None: one was deleted."""
    cancelled: int = 0

    def get_me(self) -> Deferred[IdentityOutcome]:
        return self._question(self.me)

    def get_webhook_info(self) -> Deferred[WebhookOutcome]:
        return self._question(self.webhooks)

    def set_webhook(self, url: str, secret: str) -> Deferred[SettingOutcome]:
        self.hooks.append((url, secret))
        return self._question(self.settings)

    def delete_webhook(self) -> Deferred[SettingOutcome]:
        self.hooks.append(None)
        return self._question(self.settings)

    def get_updates(self, offset: int | None, limit: int) -> Deferred[PollOutcome]:
        assert not self.polls, "two polls at once"
        self.asked.append((offset, limit))
        return self._question(self.polls)

    def send_message(self, chat_id: int, text: str) -> Deferred[SendOutcome]:
        self.sent.append((chat_id, text))
        return self._question(self.sends)

    def _question(self, waiting: list[Deferred[T]]) -> Deferred[T]:
        def cancel(question: Deferred[T]) -> None:
            self.cancelled += 1
            waiting.remove(question)

        question: Deferred[T] = Deferred(cancel)
        waiting.append(question)
        return question


@define(eq=False)
class FakeIngestion:
    """Implements ``ports.Ingestion`` in memory, by the real plan; one job for each supported update."""

    bot_id: int | None = None
    stored: Cursor = Cursor()
    skips: set[int] = field(factory=set)
    trouble: list[Exception] = field(factory=list)
    """Raised by the next calls, one each, instead of doing anything."""
    gate: Deferred[None] | None = None
    """While set, a batch waits for it before it is committed."""
    committed: list[int] = field(factory=list)
    entries: dict[int, Folded] = field(factory=dict)
    """What folding each entry of the journal comes to; of others it holds none."""

    async def bind(self, bot_id: int) -> None:
        self._raise()
        if self.bot_id not in (None, bot_id):
            raise WrongBot(self.bot_id or 0, bot_id)
        self.bot_id = bot_id

    async def cursor(self) -> Cursor:
        self._raise()
        return self.stored

    async def accept(self, batch: Batch) -> Ingested:
        self._raise()
        planned = plan(batch.elements, self.stored, self.skips)
        if self.gate is not None:
            await self.gate
        self.stored = planned.cursor
        self.committed += [update.update_id for update in planned.updates]
        return Ingested(
            cursor=planned.cursor,
            fresh=len(planned.updates) + len(planned.skipped),
            replayed=planned.replayed,
            jobs=sum(update.message is not None for update in planned.updates),
            reset=planned.reset,
            skipped=planned.skipped,
        )

    async def fold(self, entry_id: int) -> Folded:
        self._raise()
        if self.gate is not None:
            await self.gate
        if entry_id not in self.entries:
            raise UnknownEntry(f"there is no entry {entry_id}")
        self.committed.append(entry_id)
        return self.entries[entry_id]

    def _raise(self) -> None:
        if self.trouble:
            raise self.trouble.pop(0)


@define(eq=False)
class FakeJournal:
    """The part of ``ports.Journal`` that the poller looks at."""

    waiting: list[Pending] = field(factory=list)
    trouble: list[Exception] = field(factory=list)
    """Raised by the next looks, one each."""
    looks: int = 0

    async def pending(self, after: Place = BEGINNING, limit: int = 100) -> list[Pending]:
        self.looks += 1
        if self.trouble:
            raise self.trouble.pop(0)
        return self.waiting[:limit]


@frozen
class Request:
    """What a `FakeExchange` was asked."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes
    seconds: float
    limit: int


@define(eq=False)
class FakeExchange:
    """Implements ``ports.Exchange``: answers at once with what the test put in."""

    answers: list[Reply | Exception] = field(factory=list)
    requests: list[Request] = field(factory=list)

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
        self.requests.append(Request(method, url, headers, body, seconds, limit))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            return Deferred.fromCoroutine(_raising(answer))
        return succeed(answer)


async def _raising(error: Exception) -> Reply:
    raise error
