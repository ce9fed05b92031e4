"""The numbered layouts: ``MIGRATIONS[n]`` takes a database from ``user_version`` n to n + 1."""

from telegrammer.store.migrations.m0001_gateway import STATEMENTS as _GATEWAY
from telegrammer.store.migrations.m0002_journal import STATEMENTS as _JOURNAL

MIGRATIONS: tuple[tuple[str, ...], ...] = (_GATEWAY, _JOURNAL)
LATEST = len(MIGRATIONS)
