"""Updates of every kind, as another library spells them, are pushed: each is taken, and messages go on."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from telegrammer.core.updates import read_update
from telegrammer.store import journal
from telegrammer.store.engine import connect, immediate
from telegrammer.store.opening import open_state
from tests.support.foreign_updates import GROUP, PRIVATE, SUPERGROUP, foreign_updates
from tests.support.gateway import Gateway, eventually, in_order

PATHS = {"/private": PRIVATE.id, "/group": GROUP.id, "/supergroup": SUPERGROUP.id, "/moved": -4002}


def test_what_is_made_of_each_kind(tmp_path: Path) -> None:
    """A message is one as it is spelled; every other kind is dealt with, and makes no job."""
    path = tmp_path / "telegrammer.db"
    open_state(path, bot_digits=None, now=lambda: 1_793_000_000)
    with closing(connect(path)) as connection:
        for update in foreign_updates(first := 1000):
            with immediate(connection) as cursor:
                entry = journal.accept(cursor, first, update.body, 1_793_000_000).entry_id
                assert entry is not None
                folded = journal.fold(cursor, entry, 100, 1_793_000_000)
            is_message = update.kind == "message"
            assert (folded.kind, folded.jobs) == ("folded" if is_message else "unsupported", 0), update.kind
            message = read_update(update.body).message
            assert (message and message.text) == (update.message or None)
            first += 1


def test_updates_of_every_kind(gateway: Gateway) -> None:
    gateway.start_with_webhook()
    ids = {path: gateway.subscribe(path, chat_id) for path, chat_id in PATHS.items()}
    pusher, queue = gateway.api.pusher, gateway.api.queue
    updates = foreign_updates(queue.next_id)
    pusher.pause()
    for update_id, update in enumerate(updates, queue.next_id):
        queue.push_raw(update_id, update.body)
    pusher.go_on()
    pusher.wait_for(*range(queue.next_id - len(updates), queue.next_id))
    assert pusher.statuses() == [200] * len(updates)
    eventually(lambda: gateway.daemon.health()["journal"]["pending"] == 0)
    assert gateway.daemon.health()["journal"]["failed"] == 0

    owed = {
        path: [update.message for update in updates if update.chat_id == chat_id]
        for path, chat_id in PATHS.items()
    }
    # A group that has become the supergroup: its subscription gets the message that says so.
    owed["/moved"] = [message for message in owed["/supergroup"] if b"migrate_from_chat_id" in message]
    assert all(owed.values())
    for path, expected in owed.items():
        assert in_order(gateway.receiver.wait_for(len(expected), path=path), expected) == []
    assert gateway.query("SELECT parse_status, count(*) FROM journal") == [("folded", len(updates))]

    listed = gateway.daemon.request("GET", "/subscriptions").json["subscriptions"]
    chats = {each["subscription_id"]: each["chat_id"] for each in listed}
    assert chats[ids["/moved"]] == SUPERGROUP.id
    assert chats[ids["/group"]] == -1005555555555
