"""
The queue of updates behind ``getUpdates``, with the rules of Telegram's own.

Source: core.telegram.org/bots/api#getupdates; tdlib/td ``TQueue`` for what the page leaves out.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import define, field

AHEAD = 10
"""An offset up to this far beyond the next id is believed; one further out is refused as "in the future"."""


@define(eq=False)
class UpdateQueue:
    """
    Updates that nobody has confirmed yet, in the order of their ids.

    An update is its JSON text as it goes over the wire; the queue does not look inside.
    """

    next_id: int = 1
    """The id of the next update."""
    _pending: dict[int, bytes] = field(factory=dict, init=False)

    def __len__(self) -> int:
        return len(self._pending)

    def push(self, member: bytes) -> int:
        """
        Queue an update and give it an id.

        :param member: the rest of the update's JSON object, for instance ``b'"message":{…}'``.
        """
        update_id = self.next_id
        self.push_raw(update_id, b'{"update_id":%d,%b}' % (update_id, member))
        return update_id

    def push_raw(self, update_id: int, update: bytes) -> None:
        """Queue these very bytes under an id; later ids follow it."""
        self._pending[update_id] = update
        self.next_id = update_id + 1

    def restart_ids(self, next_id: int) -> None:
        """What Telegram does after a quiet week: the next id is any number, also a lower one."""
        self._pending.clear()
        self.next_id = next_id

    def clear(self) -> None:
        """Forget all updates, as ``drop_pending_updates`` does."""
        self._pending.clear()

    def take(self, offset: int, limit: int) -> list[bytes]:
        """
        The answer to one ``getUpdates``; what the offset confirms is forgotten.

        0 starts at the head.  A negative offset keeps that many of the last and forgets the rest.  Beyond
        the next id by up to ``AHEAD``: everything is forgotten.  Further beyond: taken for no offset.
        """
        if offset < 0:
            self._forget(list(self._pending)[:offset])
        elif offset <= self.next_id + AHEAD:
            self._forget([update_id for update_id in self._pending if update_id < offset])
        return list(self._pending.values())[:limit]

    def waiting(self) -> list[tuple[int, bytes]]:
        """All of them with their ids, for who pushes them to a webhook."""
        return list(self._pending.items())

    def confirm(self, update_id: int) -> None:
        """Forget this one, which a webhook has taken; others may wait before it."""
        self._pending.pop(update_id, None)

    def _forget(self, ids: Iterable[int]) -> None:
        for update_id in ids:
            del self._pending[update_id]
