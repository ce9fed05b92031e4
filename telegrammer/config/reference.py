"""The tables of settings as Markdown, for the README; a test keeps them equal."""

from __future__ import annotations

from collections.abc import Sequence

from telegrammer.config.notices import NOTICES
from telegrammer.config.table import SETTINGS, Setting


def markdown() -> str:
    """One row a setting: flag, default, meaning with its range."""
    return _table("flag", "--", SETTINGS)


def notices() -> str:
    """The same for the ``[notices]`` table of the configuration file."""
    return _table("setting", "", NOTICES)


def _table(head: str, prefix: str, settings: Sequence[Setting]) -> str:
    rows = [f"| {head} | default | |", "| --- | --- | --- |"]
    for setting in settings:
        default = setting.default if " " in setting.default or setting.default == "none" else ""
        shown = default or f"`{setting.default}`"
        rows.append(f"| `{prefix}{setting.name} {setting.metavar}` | {shown} | {setting.help} |")
    return "\n".join(rows) + "\n"
