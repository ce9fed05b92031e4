"""The command line: which command, which arguments; in either spelling, with ``--db`` before or after."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import NoReturn

from attrs import frozen

from telegrammer.config import BY_NAME, SETTINGS, is_flag, separate_unknown
from telegrammer.core.problems import TelegrammerError


class WrongUsage(TelegrammerError):
    """What was typed is no command line of ours; status 2."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # argparse would print its usage lines first; one line is the rule.
        raise WrongUsage(message)


@frozen
class Command:
    """One command: its name, what it does in one line, its arguments and what runs it."""

    name: str
    help: str
    run: Callable[[argparse.Namespace], int]
    positionals: Callable[[argparse.ArgumentParser], object] | None = None
    """Adds the positional arguments."""
    options: Callable[[argparse.ArgumentParser], object] | None = None
    """Adds the flags that are not settings."""
    settings: tuple[str, ...] = ("db", "config")
    """The settings it takes as flags; ``--db`` is always among them."""
    passes_unknown: bool = False
    """Unknown flags go to ``run`` (as ``unknown``), to be reported with all other problems at once."""


DAEMON_SETTINGS = tuple(setting.name for setting in SETTINGS)
_VALUED = frozenset(f"--{setting.name}" for setting in SETTINGS) | {"--subscription", "--since", "--id"}

SEED_SPELLINGS = frozenset(
    "--" + name
    for name in (
        "add-key",
        "list-keys",
        "delete-key",
        "list-failed-deliveries",
        "retry-delivery",
        "delete-delivery",
    )
)
"""Commands that the C++ program took as flags."""


def split_command(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """
    The command's name and the other arguments.

    Flags may stand before the name, and the name may be one of the seed's flags (``--add-key NAME``,
    ``--add-key=NAME``).
    """
    before: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        name, equals, value = argument.partition("=")
        if name in SEED_SPELLINGS:
            return name[2:], [*before, *([value] if equals else []), *rest]
        if not is_flag(argument):
            return argument, before + rest
        before.append(argument)
        if argument in _VALUED and rest:
            before.append(rest.pop(0))
    return None, before


def parse(command: Command, arguments: Sequence[str]) -> argparse.Namespace:
    """
    The command's arguments; settings in ``flags``, unknown flags in ``unknown``.

    :raises WrongUsage: with one line that repeats no value.
    """
    parser = _parser(command)
    valued: set[str] = set()
    switches: set[str] = set()
    for action in parser._actions:
        (switches if action.nargs == 0 else valued).update(action.option_strings)
    kept, unknown = separate_unknown(arguments, valued, switches)
    if unknown and not command.passes_unknown:
        raise WrongUsage(f"unknown flag {', '.join(unknown)} for {command.name}")
    parsed, surplus = parser.parse_known_args(kept)
    if surplus:
        raise WrongUsage(f"too many arguments for {command.name}")
    parsed.unknown = unknown
    parsed.flags = {
        name: value for name in command.settings if (value := getattr(parsed, _dest(name), None)) is not None
    }
    return parsed


def usage(command: Command) -> str:
    """The help text of one command."""
    return _parser(command).format_help()


def _parser(command: Command) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=f"telegrammer {command.name}", description=command.help, allow_abbrev=False, add_help=False
    )
    parser.add_argument("-h", "--help", action="store_true", help="show this help and exit")
    if command.positionals is not None:
        command.positionals(parser)
    if command.options is not None:
        command.options(parser)
    for name in command.settings:
        setting = BY_NAME[name]
        text = f"{setting.help} [default: {setting.default}]".replace("%", "%%")
        parser.add_argument(
            f"--{name}",
            dest=_dest(name),
            metavar=setting.metavar,
            help=text,
            action="append" if setting.kind == "list" else "store",
        )
    return parser


def _dest(name: str) -> str:
    return "setting_" + name.replace("-", "_")
