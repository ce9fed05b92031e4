"""A thread for what may hang, such as a disk that is somewhere else."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Lock, Thread

from attrs import define, field

Job = Callable[[], object]


@define(eq=False)
class OneThread:
    """
    Runs jobs one after another in a thread, which is there while there are any.

    One that hangs holds up those behind it, and nobody else: no thread of the reactor's pool is lost to it,
    and no exit of the process waits for it.  A job raises nothing.
    """

    name: str
    _jobs: deque[Job] = field(factory=deque, init=False, repr=False)
    _running: bool = field(default=False, init=False)
    _thread: Thread | None = field(default=None, init=False, repr=False)
    """The last one."""
    _lock: Lock = field(factory=Lock, init=False, repr=False)

    def put(self, job: Job) -> None:
        """
        Run it in its turn.

        :raises RuntimeError: there is no thread to be had; the job will not run.
        """
        with self._lock:
            if not self._running:
                thread = Thread(target=self._run, name=self.name, daemon=True)
                thread.start()
                self._thread, self._running = thread, True
            self._jobs.append(job)

    def join(self) -> None:
        """Wait until the jobs are done and the thread has ended."""
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._running = False
                    return
                job = self._jobs.popleft()
            job()
