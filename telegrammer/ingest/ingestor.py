"""The one door by which updates enter, whoever brings them (contract 5.2, 5.3, 5.5, 8)."""

from __future__ import annotations

from collections.abc import Callable

from attrs import define
from twisted.logger import Logger

from telegrammer.core.folding import Folded
from telegrammer.core.ingestion import Ingested
from telegrammer.core.telegram import Batch
from telegrammer.ports import Ingestion

log = Logger()


def _ignored(count: int) -> None: ...


@define(eq=False)
class Ingestor:
    """
    Hands a batch to the store and tells of what came of it.

    :param on_jobs: called after a commit that made jobs, to wake the delivery workers.
    :param on_purged: told how many dead jobs made room.
    """

    ingestion: Ingestion
    on_jobs: Callable[[], None]
    on_purged: Callable[[int], None] = _ignored

    async def accept(self, batch: Batch) -> Ingested:
        """
        Ingest a batch; returns once it is committed.

        :raises CapacityReached: it does not fit; nothing was written.
        :raises MalformedUpdate: it holds a malformed update that is not to be skipped; nothing was written.
        :raises StorageUnavailable: the database could not; nothing was written.
        """
        done = await self.ingestion.accept(batch)
        if done.reset:
            log.warn(
                "Telegram restarted its update ids: next offset {offset}, epoch {epoch}",
                offset=done.cursor.next_offset,
                epoch=done.cursor.epoch,
            )
        for each in done.quarantined:
            log.warn(
                "malformed update {update_id} put aside as entry {entry} of the journal: {why}",
                update_id=each.update_id,
                entry=each.entry_id,
                why=each.why,
            )
        for update_id in done.skipped:
            log.warn("malformed update {update_id} skipped, as the operator asked", update_id=update_id)
        self._tell(done.jobs, done.migrated, done.evicted)
        if done.fresh:
            log.debug(
                "ingested {fresh} updates, {jobs} jobs, next offset {offset}",
                fresh=done.fresh,
                jobs=done.jobs,
                offset=done.cursor.next_offset,
            )
        return done

    async def fold(self, entry_id: int) -> Folded:
        """
        Ingest an entry of the journal; returns once it is committed.

        :raises: as ``Ingestion.fold``.
        """
        done = await self.ingestion.fold(entry_id)
        self._tell(done.jobs, done.migrated, done.evicted)
        return done

    def _tell(self, jobs: int, migrated: int, evicted: int) -> None:
        if jobs:
            self.on_jobs()
        if evicted:
            log.warn("purged {count} dead deliveries, to make room for a message", count=evicted)
            self.on_purged(evicted)
        if migrated:
            log.info("{count} subscriptions moved with their groups", count=migrated)
