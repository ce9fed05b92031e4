"""
The composition root: builds every object and says in which order they start.  They stop in reverse.

The order, and why (contract 1.3): the lock before all else; the ports, so that one which is taken is known
before anything is changed; the database, which recognises, migrates and recovers; the sockets outwards before
those who use them, so that they are closed after; the notices, which watch all that follows; deliveries, the
journal's worker, and who looks after ingestion (the poller, or the keeper of the webhook) before the door, so
that an answered request finds everything at work; systemd last, when all is true.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

from attrs import define
from twisted.application.service import IService, Service
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from telegrammer import __version__
from telegrammer.config import NoticeSettings, Settings
from telegrammer.core.health import FoldingStatus, IngestionStatus
from telegrammer.core.subscriptions import SubscriptionLimits
from telegrammer.delivery.dispatcher import MOST_ASIDE, Dispatcher
from telegrammer.delivery.housekeeping import Housekeeping, interval
from telegrammer.doors import doors_of
from telegrammer.ingest.bot_api import BotApi
from telegrammer.ingest.ingestor import Ingestor
from telegrammer.ingest.journal_keeping import JournalKeeping
from telegrammer.ingest.journal_worker import FoldingService, JournalWorker
from telegrammer.ingest.player import Player
from telegrammer.ingest.poller import Poller
from telegrammer.ingest.webhook import WebhookIntake
from telegrammer.ingest.webhook_keeper import WebhookKeeper
from telegrammer.notices.carrier import Carrier
from telegrammer.notices.handle import Handle
from telegrammer.notices.service import Notices
from telegrammer.notices.watch import Watch
from telegrammer.outbound.callbacks import CallbackClient, CallbackLimits
from telegrammer.outbound.exchange import api_exchange
from telegrammer.outbound.resolver import ThreadedResolver, reactor_with_resolver
from telegrammer.outbound.tls import policy_for_https
from telegrammer.ports import Now
from telegrammer.service import Listeners, OrderedServices, Repeating, SystemdNotifier, Wakeup
from telegrammer.state import State
from telegrammer.store.database import Database
from telegrammer.store.deliveries import SqlDeliveries
from telegrammer.store.ingestion import SqlIngestion
from telegrammer.store.journal import SqlJournal
from telegrammer.store.keys import SqlKeys
from telegrammer.store.lock import ProcessLock
from telegrammer.store.subscriptions import SqlSubscriptions
from telegrammer.store.turns import QueueRules
from telegrammer.store.usernames import SqlUsernames
from telegrammer.web.api import Api
from telegrammer.web.credentials import BearerKeys
from telegrammer.web.health import Health
from telegrammer.web.listening import Listening
from telegrammer.web.screen import Area
from telegrammer.web.webhook import Webhook

log = Logger()


def build(settings: Settings, reactor: Any, keep_secret: Callable[[str], None]) -> OrderedServices:
    """
    The daemon, not started.  Nothing is opened, locked or scheduled yet.

    :param keep_secret: told of a secret that only the start finds, or makes: it must appear in no log.
    :raises StartRefused: ``--ca-file`` is of no use.
    """
    # callLater waits by this clock; Twisted's own is the wall clock, and a clock that is set would stop
    # or storm every timer (contract 9).
    reactor.seconds = time.monotonic
    now: Now = time.time
    jitter = random.random

    lock = ProcessLock(settings.db)
    state = State(settings, now, keep_secret)
    database = Database(settings.db, reactor, settings.durability, state.open)

    tls = policy_for_https(settings.ca_file)
    workers = settings.delivery_workers
    callback_names = ThreadedResolver(reactor, reactor, threads=2 * (workers + MOST_ASIDE))
    callbacks = CallbackClient(
        reactor,
        reactor,
        callback_names,
        tls,
        f"telegrammer/{__version__}",
        CallbackLimits(idle_connections=max(64, workers)),
        # The dispatcher is built below.
        on_stuck=lambda: dispatcher.wake(),
    )
    api_names = ThreadedResolver(reactor, reactor, threads=8)
    api_reactor = reactor_with_resolver(reactor, reactor, api_names)
    polling = api_exchange(api_reactor, tls)
    sending = api_exchange(api_reactor, tls, idle_connections=settings.http_workers)
    telegram = BotApi(settings.token, settings.api_url, polling, sending)
    mail_names = ThreadedResolver(reactor, reactor, threads=4)
    sockets = _Sockets(callbacks, (polling, sending), (callback_names, api_names, mail_names))

    rooms, accepted = Listeners(), Listeners()
    deliveries = SqlDeliveries(
        database,
        now,
        QueueRules(settings.retry_schedule.attempts, settings.max_jobs, settings.max_dead_per_key),
        settings.dead_retention,
    )
    dispatcher = Dispatcher(
        deliveries,
        callbacks,
        reactor,
        now,
        jitter,
        settings.retry_schedule,
        workers,
        on_left=rooms.tell,
        stuck=callbacks.stuck,
    )

    # Built below, where there are any.
    notices: Notices | None = None

    def tell_purged(count: int) -> None:
        if notices is not None:
            notices.watch.tell_purged(count)

    housekeeping = Housekeeping(
        deliveries,
        dispatcher.take_toll,
        on_left=rooms.tell,
        interval=interval(settings.dead_retention),
        on_purged=tell_purged,
    )
    rounds = Repeating(housekeeping.round, reactor, Wakeup(reactor))

    ingestion = SqlIngestion(
        database,
        settings.max_jobs,
        now,
        quarantine=settings.on_malformed == "quarantine",
        fold_seconds=settings.fold_timeout,
    )
    ingestor = Ingestor(ingestion, dispatcher.wake, tell_purged)
    journal = SqlJournal(database, now, settings.journal_retention)
    worker = JournalWorker(Player(ingestor, journal), journal, reactor, now)
    keeping = JournalKeeping(journal, reactor, interval(settings.journal_retention))
    tidying = Repeating(keeping.round, reactor, Wakeup(reactor))
    rooms.add(worker.notify_room)
    accepted.add(worker.notify)
    database.on_outside_commit.extend((dispatcher.notify_commit, worker.notify_commit))

    pushed: Area | None = None
    ingester: Poller | WebhookKeeper
    if settings.ingest == "webhook":
        ingester = keeper = WebhookKeeper(
            telegram,
            ingestion,
            settings.webhook_url or "",
            lambda: state.webhook_secret or "",
            settings.token.bot_id,
            reactor,
            now,
            jitter,
        )
        accepted.add(keeper.note_accepted)
        intake = WebhookIntake(journal, reactor, accepted.tell, keeper.may_accept)
        pushed = Webhook(intake).area(lambda: state.webhook_secret)
    else:
        ingester = poller = Poller(
            telegram,
            ingestion,
            ingestor,
            journal,
            settings.token.bot_id,
            reactor,
            now,
            jitter,
            Wakeup(reactor),
        )
        rooms.add(poller.notify_room)
        database.on_outside_commit.append(poller.notify_commit)

    if settings.notices is not None:
        notices = _notices(
            settings.notices,
            settings,
            reactor,
            mail_names,
            now,
            ingester.status,
            worker.status,
            deliveries,
            journal,
            state,
        )

    health = Health(
        bot=lambda: ingester.identity() or state.bound,
        ingestion=ingester.status,
        delivery=dispatcher.status,
        storage=database,
        counts=deliveries.counts,
        folding=worker.status,
        journal=journal.counts,
        capacity=settings.max_jobs,
        clock=reactor,
        now=now,
        outbox=lambda: None if notices is None else notices.status(),
    )
    limits = SubscriptionLimits(settings.max_subscriptions_per_key, settings.max_subscriptions)
    subscriptions = SqlSubscriptions(database, limits, now, on_left=rooms.tell)
    api = Api(subscriptions, SqlUsernames(database), telegram, health)
    doors = doors_of(settings, api.area(BearerKeys(SqlKeys(database), reactor)), pushed, reactor)

    root = OrderedServices(reactor, settings.shutdown_timeout)
    parts: dict[str, IService] = {
        "lock": lock,
        **doors,
        "database": database,
        "sockets": sockets,
        **({} if notices is None else {"notices": notices}),
        "deliveries": dispatcher,
        "housekeeping": rounds,
        "folding": FoldingService(worker, reactor),
        "journal": tidying,
        "poller" if pushed is None else "webhook keeper": ingester.service(),
        "http": Listening(tuple(doors.values())),
        "systemd": SystemdNotifier(os.environ.get("NOTIFY_SOCKET"), reactor, _watchdog_usec(os.environ)),
    }
    for name, part in parts.items():
        part.setName(name)
        part.setServiceParent(root)
    return root


def _notices(
    told: NoticeSettings,
    settings: Settings,
    reactor: Any,
    names: ThreadedResolver,
    now: Now,
    ingestion: Callable[[], IngestionStatus],
    folding: Callable[[], FoldingStatus],
    deliveries: SqlDeliveries,
    journal: SqlJournal,
    state: State,
) -> Notices:
    # Late: what mails is a fifth of all there is to import, and most daemons start without it.
    from telegrammer.notice_road import queue_of, road

    queue = queue_of(settings.token.bot_id)
    way = road(told, settings.db, settings.ca_file, reactor, names, now, queue)
    handle, wakeup = Handle(way.open), Wakeup(reactor)
    watch = Watch(
        handle,
        told.recipients,
        ingestion=ingestion,
        folding=folding,
        counts=deliveries.counts,
        journal=journal.counts,
        deaths=deliveries.deaths,
        capacity=settings.max_jobs,
        clock=reactor,
        now=now,
        backups=lambda: state.backups,
        on_sent=wakeup.ring,
    )
    carrier = Carrier(handle, way.mailer, way.credentials, told.timeout, reactor, now)
    return Notices(handle, watch, carrier, reactor, wakeup)


def _watchdog_usec(environ: Mapping[str, str]) -> int | None:
    """How often systemd wants to hear from this process, in microseconds (sd_watchdog_enabled(3))."""
    usec = environ.get("WATCHDOG_USEC", "")
    meant = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return int(usec) if meant and usec.isascii() and usec.isdecimal() and int(usec) > 0 else None


@define(eq=False)
class _Sockets(Service):
    """Closes, at its place in the stop, what was opened to others."""

    callbacks: CallbackClient
    exchanges: tuple[Any, ...]
    resolvers: tuple[ThreadedResolver, ...]

    def stopService(self) -> Deferred[None]:
        super().stopService()
        return Deferred.fromCoroutine(self._close())

    async def _close(self) -> None:
        for resolver in self.resolvers:
            resolver.stop()
        await self.callbacks.close()
        for exchange in self.exchanges:
            await exchange.close()
