"""
Settings from flags, environment, a TOML file and credential files (contract 1.2).

``table`` names every setting once; flags, variables, TOML names, help texts and documentation come from it.
``load`` reads them by precedence and reports every problem, not the first.
"""

from telegrammer.config.commands import (
    database_path,
    folding_for_command,
    notices_for_command,
    telegram_for_command,
)
from telegrammer.config.flags import is_flag, separate_unknown
from telegrammer.config.loading import load
from telegrammer.config.notices import NOTICES
from telegrammer.config.parsers import WEBHOOK_PATH
from telegrammer.config.table import BY_NAME, SETTINGS, Setting
from telegrammer.config.values import NoticeSettings, Settings, Token

__all__ = [
    "BY_NAME",
    "NOTICES",
    "SETTINGS",
    "WEBHOOK_PATH",
    "NoticeSettings",
    "Setting",
    "Settings",
    "Token",
    "database_path",
    "folding_for_command",
    "is_flag",
    "load",
    "notices_for_command",
    "separate_unknown",
    "telegram_for_command",
]
