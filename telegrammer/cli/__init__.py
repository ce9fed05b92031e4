"""
The ``telegrammer`` command: the daemon in the foreground, a check, a demo, the operator's commands.

Status (contract 1.1): 0 done; 1 refused or not found, with one line on standard error; 2 when what was typed
is wrong.  Nothing here prints a key, a token, a payload or a callback's query, but ``add-key`` its new key.
"""

import signal
import threading

# An interrupt while there is nothing yet that could end in good order ends the process, without a traceback.
_meant = (
    threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
)
if _meant:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from telegrammer.cli.main import main  # noqa: E402

if _meant:
    signal.signal(signal.SIGINT, signal.default_int_handler)

__all__ = ["main"]
