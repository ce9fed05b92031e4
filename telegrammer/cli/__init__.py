"""
The ``telegrammer`` command: the daemon in the foreground, a check, a demo, the operator's commands.

Status (contract 1.1): 0 done; 1 refused or not found, with one line on standard error; 2 when what was typed
is wrong.  Nothing here prints a key, a token, a payload or a callback's query, but ``add-key`` its new key.
"""

from telegrammer.cli.main import main

__all__ = ["main"]
