"""
``telegrammer notify-test``: one notice through the whole road, and what happened at each step (contract 7.4).

It has a queue of its own in the daemon's outbox, so that it claims its own message, whether a daemon runs or
not.  A notice that could not be delivered is taken out again: the next run sends another.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import AsyncIterator

from twisted.internet.defer import CancelledError

from telegrammer.cli.findings import Finding
from telegrammer.config import NoticeSettings, notices_for_command
from telegrammer.core.leases import Leased
from telegrammer.core.messages import Message
from telegrammer.core.notice_texts import moment
from telegrammer.core.problems import (
    MaybeDelivered,
    MessagingError,
    QueueEmpty,
    StartRefused,
)
from telegrammer.daemon import the_reactor
from telegrammer.notice_road import Road, carried_by, road
from telegrammer.notices.handle import OpenOutbox
from telegrammer.outbound.resolver import ThreadedResolver
from telegrammer.ports import Now

QUEUE = "notify-test"


def notify_test(arguments: argparse.Namespace) -> int:
    """
    Print the steps as they are done.

    :returns: 1 if anything failed, else 0.
    :raises StartRefused: there is no ``[notices]`` table, or a setting in it is of no use.
    :raises SettingsRefused: settings are wrong.
    """
    from telegrammer.cli.telegram import run_reactor

    db, settings, ca_file = notices_for_command(arguments.flags, os.environ)
    if settings is None:
        raise StartRefused("no notices are configured; the --config file has no [notices] table")
    reactor = the_reactor()
    resolver = ThreadedResolver(reactor, reactor)
    way = road(settings, db, ca_file, reactor, resolver, time.time, QUEUE)
    verdicts: list[str] = []

    async def work() -> None:
        try:
            async for finding in steps(way, settings, time.time):
                print(finding, flush=True)
                verdicts.append(finding.verdict)
        finally:
            resolver.stop()

    run_reactor(reactor, work)
    return 1 if "FAIL" in verdicts else 0


async def steps(way: Road, settings: NoticeSettings, now: Now) -> AsyncIterator[Finding]:
    """What happens on the way, step by step; the first that fails ends it."""
    try:
        outbox = await way.open()
    except MessagingError as error:
        yield Finding("FAIL", "outbox", str(error))
        return
    try:
        async for finding in _through(outbox, way, settings, now):
            yield finding
    finally:
        await outbox.close()


async def _through(
    outbox: OpenOutbox, way: Road, settings: NoticeSettings, now: Now
) -> AsyncIterator[Finding]:
    body = f"This is a test of the operator's notices, sent at {moment(now())}.\n"
    message = Message("Test of the notices", body, settings.recipients)
    try:
        message_id = await outbox.send(message)
    except MessagingError as error:
        yield Finding("FAIL", "outbox", f"{way.outbox}: {error}")
        return
    yield Finding("ok", "outbox", f"{way.outbox} took the notice as {message_id}")
    try:
        leased, left = await _claim(outbox, message_id)
    except MessagingError as error:
        yield Finding("FAIL", "claim", str(error))
        return
    yield Finding("ok", "claim", "leased" + (f"; removed {left} that earlier tests left" if left else ""))
    try:
        delivered, finding = await _deliver(way, settings, leased)
    except CancelledError:
        # By a signal.  Nobody else would take it out.
        await outbox.acknowledge(leased.id, leased.lease or "")
        raise
    yield finding
    try:
        await outbox.acknowledge(leased.id, leased.lease or "")
    except MessagingError as error:
        yield Finding("FAIL", "acknowledgement", str(error))
        return
    yield Finding("ok", "acknowledgement", "done" if delivered else "taken out of the outbox, undelivered")


async def _claim(outbox: OpenOutbox, message_id: str) -> tuple[Leased, int]:
    """Ours, and how many we found before it: a test that was killed has left them."""
    left = 0
    while True:
        try:
            leased = await outbox.claim()
        except QueueEmpty:
            raise QueueEmpty("another notify-test has taken it") from None
        if leased.id == message_id:
            return leased, left
        await outbox.acknowledge(leased.id, leased.lease or "")
        left += 1


async def _deliver(way: Road, settings: NoticeSettings, leased: Leased) -> tuple[bool, Finding]:
    where = carried_by(settings)
    try:
        await way.mailer.send(
            leased.message, message_id=leased.id, seconds=settings.timeout, credentials=way.credentials
        )
    except MaybeDelivered as error:
        return False, Finding("FAIL", "delivery", f"{where}: it may have arrived, or not: {error}")
    except MessagingError as error:
        return False, Finding("FAIL", "delivery", f"{where}: {error}")
    count = len(leased.recipients)
    return True, Finding("ok", "delivery", f"{where}, for {count} recipient{'' if count == 1 else 's'}")
