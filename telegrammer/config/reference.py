"""The table of settings as Markdown, for the README; a test keeps the two equal."""

from __future__ import annotations

from telegrammer.config.table import SETTINGS


def markdown() -> str:
    """One row a setting: flag, default, meaning with its range."""
    rows = ["| flag | default | |", "| --- | --- | --- |"]
    for setting in SETTINGS:
        default = setting.default if " " in setting.default or setting.default == "none" else ""
        shown = default or f"`{setting.default}`"
        rows.append(f"| `--{setting.name} {setting.metavar}` | {shown} | {setting.help} |")
    return "\n".join(rows) + "\n"
