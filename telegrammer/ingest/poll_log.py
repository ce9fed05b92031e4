"""What the poller tells the operator: one line when its state changes, none for each try (contract 5.4)."""

from __future__ import annotations

from attrs import define, field, frozen
from twisted.logger import Logger

from telegrammer.core.polling import FULL_LIMIT, Event, Identified, PollState
from telegrammer.core.telegram import BadCredentials, Identity, NetworkFailure, UpstreamFailure

log = Logger(namespace="telegrammer.ingest.poller")


@frozen
class Details:
    """What a line says beyond the event; all of it ours, or a number, or a host made printable."""

    why: str = "it did not answer"
    update_id: int | None = None
    """Of the malformed update, if it has one."""
    webhook_host: str | None = None
    expected_bot: int | None = None
    found_bot: int | None = None


@define(eq=False)
class PollLog:
    """Writes a line when what it would tell has changed since the last one."""

    _told: tuple[object, ...] = field(default=(), init=False)
    _failures: int = field(default=0, init=False)
    """In a row, before the last success."""

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
        status = event.status if isinstance(event, BadCredentials) else None
        news = (after.state, after.reason, status, details.update_id, details.found_bot)
        if isinstance(event, Identified) and before.failures:
            # getMe answers again; whether getUpdates does is still to be seen.
            return
        self._failures = after.failures or self._failures
        if after.state == "polling" and after.limit < FULL_LIMIT:
            # A queue that is all but full takes an update now and then: not worth two lines each time.
            return
        if news == self._told:
            return
        self._told = news
        if isinstance(event, NetworkFailure | UpstreamFailure):
            details = Details(why=event.why)
        if after.state == "polling":
            self._tell_polling(identity)
        elif after.state == "backing_off":
            self._tell_backing_off(after, details, rest)
        else:
            self._tell_suspended(after, status, details)

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

    def _tell_suspended(self, after: PollState, status: int | None, details: Details) -> None:
        match after.reason:
            case "credentials":
                log.error(
                    "polling is suspended: Telegram refuses the token ({status}); take a valid one from "
                    "@BotFather, put it in the token file and restart; meanwhile getMe is asked again",
                    status=status,
                )
            case "wrong_bot":
                log.error(
                    "polling is suspended: getMe names bot {found}, but token or database belong to bot "
                    "{expected}; give that bot's token, or another --db",
                    found=details.found_bot,
                    expected=details.expected_bot,
                )
            case "conflict_webhook":
                log.error(
                    "polling is suspended: the bot has a webhook, on host {host}; if it is not wanted, "
                    "remove it with the Bot API's deleteWebhook; polling resumes by itself once it is gone",
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
