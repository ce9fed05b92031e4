"""The few settings that a command needs, read as the daemon reads its own (contract 1.1, 1.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

from attrs import fields

from telegrammer.config.loading import Flags, Reader, file_readable
from telegrammer.config.values import NoticeSettings, Settings, Token


def database_path(
    flags: Flags, environ: Mapping[str, str], *, readable: Callable[[Path], bool] = file_readable
) -> Path:
    """
    Where the database is, for a command that needs no other setting.

    :raises SettingsRefused: the path itself, or the configuration file that names it, is at fault.
    """
    reader = Reader(environ, readable)
    reader.take_flags(flags, ())
    reader.take_only(("db",))
    database = reader.database()
    if reader.problems or database is None:
        raise reader.refusal()
    return database


def folding_for_command(
    flags: Flags, environ: Mapping[str, str], *, readable: Callable[[Path], bool] = file_readable
) -> tuple[Path, int, float]:
    """
    Where the database is, ``max-jobs`` and ``fold-timeout``: for a command that folds.

    :raises SettingsRefused: one of them, or the configuration file that names it, is at fault.
    """
    reader = Reader(environ, readable)
    reader.take_flags(flags, ())
    reader.take_only(("db", "max-jobs", "fold-timeout"))
    database = reader.database()
    found = [reader.value(name) for name in ("max-jobs", "fold-timeout")]
    if reader.problems or database is None:
        raise reader.refusal()
    known = fields(Settings)
    max_jobs, fold_timeout = found
    return (
        database,
        cast("int", known.max_jobs.default if max_jobs is None else max_jobs),
        cast("float", known.fold_timeout.default if fold_timeout is None else fold_timeout),
    )


def notices_for_command(
    flags: Flags,
    environ: Mapping[str, str],
    *,
    unknown_flags: Sequence[str] = (),
    readable: Callable[[Path], bool] = file_readable,
) -> tuple[Path, NoticeSettings | None, Path | None]:
    """
    Where the database is, the notices, and ``ca-file``: for a command that needs neither token nor port.

    :raises SettingsRefused: some setting is at fault.
    """
    reader = Reader(environ, readable)
    reader.take_flags(flags, unknown_flags)
    reader.take_environment()
    reader.take_file()
    database, certificates = reader.database(), cast("Path | None", reader.value("ca-file"))
    reader.check_outbox(database)
    if reader.problems or database is None:
        raise reader.refusal()
    return database, reader.notices, certificates


def telegram_for_command(
    flags: Flags, environ: Mapping[str, str], *, readable: Callable[[Path], bool] = file_readable
) -> tuple[Token, str, Path | None]:
    """
    The token, ``api-url`` and ``ca-file``: for a command that asks Telegram, and no database.

    :raises SettingsRefused: one of them, or the configuration file that names it, is at fault.
    """
    reader = Reader(environ, readable)
    reader.take_flags(flags, ())
    reader.take_only(("token-file", "api-url", "ca-file"))
    token, certificates = reader.token(), cast("Path | None", reader.value("ca-file"))
    url = cast("str | None", reader.value("api-url")) or cast("str", fields(Settings).api_url.default)
    if reader.problems or token is None:
        raise reader.refusal()
    return token, url, certificates
