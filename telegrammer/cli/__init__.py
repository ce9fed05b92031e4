"""
The ``telegrammer`` command: the daemon in the foreground, a check, a demo, the operator's commands.

Status (contract 1.1): 0 done; 1 refused or not found, with one line on standard error; 2 when what was typed
is wrong.  Nothing here prints a key, a token, a payload or a callback's query, but ``add-key`` its new key.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _interrupt_ends_at_once() -> Iterator[None]:
    """While there is nothing yet that could end in good order: the process ends, without a traceback."""
    python_s = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not python_s or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGINT, signal.default_int_handler)


with _interrupt_ends_at_once():
    from telegrammer.cli.main import main

__all__ = ["main"]
