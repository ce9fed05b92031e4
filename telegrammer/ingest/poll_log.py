"""What the poller tells the operator: one line when its state changes, none for each try (contract 5.4)."""

from __future__ import annotations

from attrs import define, evolve, field, frozen
from twisted.logger import Logger

from telegrammer.core.polling import FULL_LIMIT, Event, JournalDrained, JournalWaits, PollState
from telegrammer.core.standing import Identified
from telegrammer.core.telegram import Identity
from telegrammer.ingest.trouble_log import code_of, tell_other_bot, tell_refused_token, why_of

log = Logger(namespace="telegrammer.ingest.poller")


@frozen
class Details:
    """What a line says beyond the event; all of it ours, or a number, or a host made printable."""

    why: str = "it did not answer"
    update_id: int | None = None
    """Of the malformed update, if it has one."""
    webhook_host: str | None = None


@define(eq=False)
class PollLog:
    """Writes a line when what it would tell has changed since the last one."""

    _told: tuple[object, ...] = field(default=(), init=False)
    _failures: int = field(default=0, init=False)
    """In a row, before the last success."""
    _waits: bool = field(default=False, init=False)
    """That polling waits for the journal has been told."""

    def tell(
        self,
        event: Event,
        before: PollState,
        after: PollState,
        rest: float,
        details: Details,
        identity: Identity | None,
    ) -> None:
        """
        Tell of a step, if it changed anything.

        :param rest: seconds until the next request.
        :param identity: the bot, once known.
        """
        if isinstance(event, JournalWaits):
            self._tell_waiting()
            return
        if isinstance(event, Identified | JournalDrained) and (before.failures or after.ask == "journal"):
            # getMe answers (again); whether getUpdates does is still to be seen.
            return
        news = (after.state, after.reason, code_of(event), details.update_id)
        self._failures = after.failures or self._failures
        if after.state == "polling" and after.limit < FULL_LIMIT:
            # A queue that is all but full takes an update now and then: not worth two lines each time.
            return
        if news == self._told:
            return
        self._told = news
        if after.state == "polling":
            self._tell_polling(identity)
        elif after.state == "backing_off":
            self._tell_backing_off(after, evolve(details, why=why_of(event) or details.why), rest)
        else:
            self._tell_suspended(event, after, details)

    def _tell_waiting(self) -> None:
        if not self._waits:
            self._waits = True
            log.info("polling begins when the updates that were pushed before have been folded")

    def _tell_polling(self, identity: Identity | None) -> None:
        if self._failures:
            log.info("polling again, after {failures} failures in a row", failures=self._failures)
            self._failures = 0
        elif identity is not None:
            log.info(
                "polling for bot {bot_id}, @{username}",
                bot_id=identity.bot_id,
                username=identity.username or "unnamed",
            )

    def _tell_backing_off(self, after: PollState, details: Details, rest: float) -> None:
        match after.reason:
            case "malformed_update" if details.update_id is not None:
                log.error(
                    "update {update_id} is malformed and holds up all that follow: {why}; "
                    "to step over it: telegrammer skip-update {update_id}",
                    update_id=details.update_id,
                    why=details.why,
                )
            case "malformed_update":
                log.error(
                    "an update is malformed and holds up all that follow: {why}; Telegram drops it in a day",
                    why=details.why,
                )
            case "rate_limited":
                log.warn("Telegram limits our polls: the next one in {seconds:.0f} s", seconds=rest)
            case "storage":
                log.warn("updates cannot be stored: {why}; trying again", why=details.why)
            case reason:
                log.warn("polling backs off ({reason}): {why}", reason=reason, why=details.why)

    def _tell_suspended(self, event: Event, after: PollState, details: Details) -> None:
        match after.reason:
            case "credentials":
                tell_refused_token(log, "polling", event)
            case "wrong_bot":
                tell_other_bot(log, "polling", event)
            case "conflict_webhook":
                log.error(
                    "polling is suspended: the bot has a webhook, on host {host}; if it is not wanted, "
                    "remove it: telegrammer delete-webhook; polling resumes by itself once it is gone",
                    host=details.webhook_host or "unknown",
                )
            case "conflict_poller":
                log.error(
                    "polling is suspended: another program polls this bot; stop that one; "
                    "polling resumes by itself"
                )
            case _:
                log.error(
                    "polling is suspended: the queue has no room for new jobs; mend slow receivers, delete "
                    "dead jobs, or raise --max-jobs; polling resumes by itself"
                )
