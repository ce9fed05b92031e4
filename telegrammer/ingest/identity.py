"""Whose token is it?  Asked before anything else, whichever way updates come (contract 1.3)."""

from __future__ import annotations

from attrs import define, field

from telegrammer.core.problems import WrongBot
from telegrammer.core.standing import Identified, OtherBot
from telegrammer.core.telegram import Identity, Refused
from telegrammer.ingest.asking import Asking
from telegrammer.ports import Ingestion, TelegramApi


@define(eq=False)
class Identification:
    """
    Asks ``getMe``, and binds the database to the bot.

    :param token_bot_id: the bot the token's digits claim.
    """

    api: TelegramApi
    ingestion: Ingestion
    token_bot_id: int
    known: Identity | None = field(default=None, init=False)
    """The bot, once ``getMe`` has named the one that token and database are of."""

    async def ask(self, asking: Asking) -> Identified | OtherBot | Refused:
        """
        One ``getMe``.

        :raises StorageUnavailable: the binding could not be stored.
        :raises CancelledError: by a stop.
        """
        found = await asking.hold(self.api.get_me())
        if not isinstance(found, Identity):
            return found
        if found.bot_id != self.token_bot_id:
            self.known = None
            return OtherBot(self.token_bot_id, found.bot_id)
        try:
            await self.ingestion.bind(found.bot_id)
        except WrongBot as wrong:
            self.known = None
            return OtherBot(wrong.bound, wrong.found)
        self.known = found
        return Identified()
