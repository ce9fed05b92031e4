"""
Version 1: keys, subscriptions with lanes, usernames, the delivery queue, the cursor.

``lanes`` holds one row a subscription with its oldest undelivered job, so that a claim is one step in an
index whatever the backlog.  ``payloads`` holds a message once for all who get it.  ``deliveries`` repeats
the owner's ``key_id`` so that the dead of one key are found and counted in an index, also while a cascade
is taking its subscriptions away.
"""

STATEMENTS: tuple[str, ...] = (
    # One row.  next_offset 0: nothing was ever confirmed.  turn: the last number given to a lane.
    """
    CREATE TABLE gateway(
        id INTEGER PRIMARY KEY CHECK(id = 1),
        bot_id INTEGER,
        next_offset INTEGER NOT NULL DEFAULT 0,
        epoch INTEGER NOT NULL DEFAULT 0,
        turn INTEGER NOT NULL DEFAULT 0)
    """,
    "INSERT INTO gateway(id) VALUES (1)",
    # Updates the operator wants stepped over; a mark goes when the cursor has passed it.
    "CREATE TABLE skip_marks(update_id INTEGER PRIMARY KEY, created_at INTEGER NOT NULL)",
    """
    CREATE TABLE keys(
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL UNIQUE,
        digest BLOB NOT NULL UNIQUE CHECK(length(digest) = 32),
        created_at INTEGER NOT NULL,
        legacy INTEGER NOT NULL DEFAULT 0)
    """,
    # retired: an equal subscription absorbed it when its group moved; it goes when its lane is empty.
    """
    CREATE TABLE subscriptions(
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        key_id INTEGER NOT NULL REFERENCES keys(id) ON DELETE CASCADE,
        chat_id INTEGER NOT NULL,
        callback_url TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        retired INTEGER NOT NULL DEFAULT 0)
    """,
    """
    CREATE UNIQUE INDEX subscriptions_identity ON subscriptions(key_id, chat_id, callback_url)
        WHERE retired = 0
    """,
    "CREATE INDEX subscriptions_chat ON subscriptions(chat_id, key_id) WHERE retired = 0",
    "CREATE INDEX subscriptions_key ON subscriptions(key_id)",
    "CREATE INDEX subscriptions_retired ON subscriptions(id) WHERE retired = 1",
    """
    CREATE TABLE usernames(
        chat_id INTEGER PRIMARY KEY,
        username TEXT NOT NULL UNIQUE,
        observed_at INTEGER NOT NULL)
    """,
    # refs: how many jobs still owe this message; the trigger below frees it with the last one.
    """
    CREATE TABLE payloads(
        id INTEGER PRIMARY KEY,
        epoch INTEGER NOT NULL,
        update_id INTEGER NOT NULL,
        body BLOB NOT NULL,
        refs INTEGER NOT NULL,
        UNIQUE(epoch, update_id))
    """,
    # carried: the lane's failures in a row before this job's first attempt.
    """
    CREATE TABLE deliveries(
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        subscription_id INTEGER NOT NULL REFERENCES subscriptions(id) ON DELETE CASCADE,
        key_id INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        update_id INTEGER NOT NULL,
        payload_id INTEGER NOT NULL,
        state TEXT NOT NULL DEFAULT 'PENDING' CHECK(state IN ('PENDING', 'IN_FLIGHT', 'DEAD')),
        attempt_count INTEGER NOT NULL DEFAULT 0,
        carried INTEGER NOT NULL DEFAULT 0,
        first_attempt_at INTEGER,
        next_attempt_at INTEGER NOT NULL,
        created_at INTEGER NOT NULL,
        died_at INTEGER,
        last_error TEXT,
        UNIQUE(subscription_id, epoch, update_id))
    """,
    "CREATE INDEX deliveries_in_flight ON deliveries(id) WHERE state = 'IN_FLIGHT'",
    # state stands in the indexes of the dead as well, or counting them would look into every row.
    "CREATE INDEX deliveries_dead ON deliveries(died_at, id, state) WHERE state = 'DEAD'",
    "CREATE INDEX deliveries_dead_key ON deliveries(key_id, died_at, id, state) WHERE state = 'DEAD'",
    # Every road on which a job leaves, cascades included, lowers refs here.
    """
    CREATE TRIGGER deliveries_free_payload AFTER DELETE ON deliveries BEGIN
        UPDATE payloads SET refs = refs - 1 WHERE id = OLD.payload_id;
        DELETE FROM payloads WHERE id = OLD.payload_id AND refs <= 0;
    END
    """,
    # head_id: the oldest job that is not dead; NULL: none.
    # next_due: when the head may go; NULL while a job of the lane is in flight, when there is none, and
    #   while the POST of a job that was removed under way has not come back.
    # waits_since: when the wait for next_due began, so that a clock set back between two runs is seen.
    """
    CREATE TABLE lanes(
        subscription_id INTEGER PRIMARY KEY REFERENCES subscriptions(id) ON DELETE CASCADE,
        head_id INTEGER,
        next_due INTEGER,
        waits_since INTEGER NOT NULL DEFAULT 0,
        turn INTEGER NOT NULL DEFAULT 0,
        sick INTEGER NOT NULL DEFAULT 0,
        fails INTEGER NOT NULL DEFAULT 0)
    """,
    "CREATE INDEX lanes_ready ON lanes(sick, next_due, turn) WHERE next_due IS NOT NULL",
)
