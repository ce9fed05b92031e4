"""
Version 2: the journal of pushed updates (contract 8), and what a change of the mode has to know.

The index of what waits is partial: in the steady state it holds no row or one, where one over all entries
would hold the whole table for the sake of that one.  Its columns are the order of folding, so that a pass
goes on behind its last entry by a search: ``(received_at, id) > (?, ?)``, as a row value, for the same
said with OR is a scan.
"""

STATEMENTS: tuple[str, ...] = (
    # mode: how updates came last; it becomes 'poll' again with the first batch that was polled.
    "ALTER TABLE gateway ADD COLUMN mode TEXT NOT NULL DEFAULT 'poll' CHECK(mode IN ('poll', 'webhook'))",
    # The secret_token of our webhook; it stays the same, for Telegram may repeat old calls.
    "ALTER TABLE gateway ADD COLUMN webhook_secret TEXT",
    # highest_seen: of the pushed updates of this epoch.  accepted_at: the clock at the last update, however
    # it came.  received_at: of the last entry, which the next may not be below.
    "ALTER TABLE gateway ADD COLUMN highest_seen INTEGER",
    "ALTER TABLE gateway ADD COLUMN accepted_at INTEGER",
    "ALTER TABLE gateway ADD COLUMN received_at INTEGER NOT NULL DEFAULT 0",
    # Of a gateway that has polled: the last that can be told.  Were it unknown for good, pushed updates with
    # restarted ids would be taken for repeats for ever.
    """
    UPDATE gateway SET accepted_at = MAX(
        (SELECT COALESCE(MAX(observed_at), 0) FROM usernames),
        (SELECT COALESCE(MAX(created_at), 0) FROM deliveries))
    WHERE next_offset > 0
    """,
    # moved_from: the chat before, of one that moved with its group; by which update.
    "ALTER TABLE subscriptions ADD COLUMN moved_from INTEGER",
    "ALTER TABLE subscriptions ADD COLUMN moved_epoch INTEGER",
    "ALTER TABLE subscriptions ADD COLUMN moved_by INTEGER",
    "CREATE INDEX subscriptions_moved ON subscriptions(moved_from) WHERE moved_from IS NOT NULL",
    # subscriptions_until: the highest id of a subscription when the update was received; ids are never
    #   reused, so exactly those up to it are owed its message.
    # body: the last column, for a look at the others reads none of it; NULL once its retention is over, when
    #   only the identity stays, against a repeat.
    """
    CREATE TABLE journal(
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        received_at INTEGER NOT NULL,
        accepted_at INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        update_id INTEGER NOT NULL,
        subscriptions_until INTEGER NOT NULL,
        parse_status TEXT NOT NULL DEFAULT 'pending' CHECK(parse_status IN ('pending', 'folded', 'failed')),
        reason TEXT,
        body BLOB,
        UNIQUE(epoch, update_id))
    """,
    "CREATE INDEX journal_pending ON journal(received_at, id) WHERE parse_status = 'pending'",
    "CREATE INDEX journal_failed ON journal(id) WHERE parse_status = 'failed'",
)
