"""The table of commands, and the status and the line that each way of ending has."""

from __future__ import annotations

import argparse
import errno
import io
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress

from telegrammer import __version__
from telegrammer.cli.arguments import (
    DAEMON_SETTINGS,
    Command,
    WrongUsage,
    parse,
    split_command,
    usage,
)
from telegrammer.core.problems import SettingsRefused
from telegrammer.daemon import refusal
from telegrammer.logs import whence
from telegrammer.store.engine import translate


def _serve(arguments: argparse.Namespace) -> int:
    from telegrammer.cli.serving import serve

    return serve(arguments)


def _check(arguments: argparse.Namespace) -> int:
    from telegrammer.cli.checking import check

    return check(arguments)


def _notify_test(arguments: argparse.Namespace) -> int:
    from telegrammer.cli.notice_test import notify_test

    return notify_test(arguments)


def _replay(arguments: argparse.Namespace) -> int:
    from telegrammer.cli.replay import replay

    return replay(arguments)


def _delete_webhook(arguments: argparse.Namespace) -> int:
    from telegrammer.cli.webhook import delete_webhook

    return delete_webhook(arguments)


def _demo(arguments: argparse.Namespace) -> int:
    from telegrammer.demo.tour import main

    return main(stay=arguments.stay)


def _operator(name: str) -> Command:
    """A command of ``cli.operator``, which loads the store only when it is used."""

    def run(arguments: argparse.Namespace) -> int:
        from telegrammer.cli import operator

        function = getattr(operator, name.replace("-", "_"))
        return int(function(arguments))

    return Command(name, _HELP[name], run, _POSITIONALS.get(name), _OPTIONS.get(name))


_HELP = {
    "add-key": "Make an API key and print it, once.",
    "list-keys": "List the names and creation times of the API keys.",
    "delete-key": "Delete an API key, its subscriptions and their jobs.",
    "list-failed-deliveries": "List the dead jobs.",
    "retry-delivery": "Put jobs back into the queue with a fresh budget.",
    "delete-delivery": "Remove jobs.",
    "skip-update": "Step over an update that cannot be parsed.",
}


def _name(parser: argparse.ArgumentParser) -> object:
    return parser.add_argument("name", metavar="NAME", help="1 to 128 bytes, no control characters")


def _json(parser: argparse.ArgumentParser) -> object:
    return parser.add_argument("--json", action="store_true", help="one JSON document")


def _subscription(parser: argparse.ArgumentParser) -> object:
    return parser.add_argument("--subscription", metavar="N", help="only the dead jobs of this subscription")


def _listing(parser: argparse.ArgumentParser) -> object:
    return _json(parser), _subscription(parser)


def _bulk(parser: argparse.ArgumentParser) -> object:
    return parser.add_argument("--all", action="store_true", help="all dead jobs"), _subscription(parser)


def _entries(parser: argparse.ArgumentParser) -> object:
    parser.add_argument("--failed", action="store_true", help="only those that failed, as after an upgrade")
    parser.add_argument(
        "--since",
        metavar="T",
        help="only those received since: Unix seconds, or ISO 8601, UTC without a zone",
    )
    parser.add_argument(
        "--id", metavar="N", help="only the entry N; if there is none, the latest one with update_id N"
    )
    return _json(parser)


_POSITIONALS = {
    "add-key": _name,
    "delete-key": _name,
    "retry-delivery": lambda parser: parser.add_argument("ids", metavar="ID", nargs="*"),
    "delete-delivery": lambda parser: parser.add_argument("ids", metavar="ID", nargs="+"),
    "skip-update": lambda parser: parser.add_argument("id", metavar="ID", help="its update_id"),
}
_OPTIONS = {"list-keys": _json, "list-failed-deliveries": _listing, "retry-delivery": _bulk}

COMMANDS = {
    command.name: command
    for command in (
        Command(
            "serve",
            "Run the daemon in the foreground, logging to standard error.",
            _serve,
            settings=DAEMON_SETTINGS,
            passes_unknown=True,
        ),
        Command(
            "demo",
            "Show everything at work: no token, no network, nothing left behind.",
            _demo,
            options=lambda parser: parser.add_argument(
                "--stay", action="store_true", help="keep it up and print ready-made curl lines"
            ),
        ),
        Command(
            "check",
            "Say whether this configuration can run; changes nothing.",
            _check,
            settings=DAEMON_SETTINGS,
            passes_unknown=True,
        ),
        *map(_operator, _HELP),
        Command(
            "delete-webhook",
            "Have Telegram push no more; what waits there stays.",
            _delete_webhook,
            settings=("db", "config", "token-file", "api-url", "ca-file"),
        ),
        Command(
            "replay",
            "Fold what the journal keeps once more; what is folded stays so.",
            _replay,
            options=_entries,
            settings=("db", "config", "max-jobs", "fold-timeout"),
        ),
        Command(
            "notify-test",
            "Send one notice through the whole road, and say what happened.",
            _notify_test,
            settings=("db", "config", "ca-file"),
        ),
    )
}


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {command.name:<{width}}  {command.help}" for command in COMMANDS.values()]
    return "\n".join(
        [
            "usage: telegrammer COMMAND [--db PATH] [options]",
            "       telegrammer COMMAND --help",
            "",
            *lines,
            "",
            "The daemon also runs as: twistd telegrammer [options]",
        ]
    )


def _dispatch(arguments: Sequence[str]) -> int:
    name, rest = split_command(arguments)
    before_end = rest[: rest.index("--")] if "--" in rest else rest
    wants_help = "--help" in before_end or "-h" in before_end
    if name == "help":
        name, wants_help = (rest[0] if rest else None), True
    if name is None:
        if "--version" in rest:
            print(f"telegrammer {__version__}")
        elif wants_help:
            print(_overview())
        else:
            raise WrongUsage("name a command; telegrammer --help lists them")
        return 0
    command = COMMANDS.get(name)
    if command is None:
        # What is no word may be a secret that slipped.
        shown = f" {name}" if re.fullmatch(r"[a-z-]{1,40}", name) else ""
        raise WrongUsage(f"no such command{shown}; telegrammer --help lists them")
    if wants_help:
        print(usage(command), end="")
        return 0
    return command.run(parse(command, rest))


def main(argv: Sequence[str] | None = None) -> int:
    """
    Run one command line.

    :returns: 0 done, 1 refused or not found, 2 wrong usage; 130 when interrupted.
    """
    _replace_closed_streams()
    errors = sys.stderr
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A name may have what the terminal's encoding lacks.
            stream.reconfigure(errors="backslashreplace")
    lines: Sequence[str] = ()
    try:
        status = _dispatch(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
    except WrongUsage as error:
        status, lines = 2, (str(error),)
    except SettingsRefused as error:
        status, lines = 2 if error.usage else 1, error.problems
    except BrokenPipeError:
        # The reader has what it wanted.
        status = 1
    except KeyboardInterrupt:
        status = 130
    except Exception as error:
        status, lines = 1, (refusal(translate(error) or error) or f"unexpected {whence(error)}",)
    with suppress(OSError):
        for line in lines:
            print(f"telegrammer: {line}", file=errors)
    _give_up_output()
    return status


class _Closed(io.TextIOBase):
    """A standard output that the caller closed: to print there fails, as on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "standard output is closed")


def _replace_closed_streams() -> None:
    """The numbers 0 to 2, when the caller closed them, must not become those of our own files."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # Takes the lowest number that is free, this one.
            os.open(os.devnull, os.O_RDWR)
    # Python's streams are None then, and print() would take the other one or do nothing.
    sys.stdout = sys.stdout or _Closed()
    sys.stderr = sys.stderr or open(os.devnull, "w")


def _give_up_output() -> None:
    """What could not be written is dropped, or the interpreter would complain of it at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
