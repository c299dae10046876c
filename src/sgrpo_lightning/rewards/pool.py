"""Worker processes with a time and a memory limit for every item that they work on."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

    from pebble import ProcessFuture, ProcessPool

# One more worker takes about as long to start as it takes to grade a few answers.
SMALL = 8
# Seconds to start a worker, in which the main module of the program may be imported again.
START = 60.0

_HOME = os.getpid()


@dataclass(frozen=True, slots=True)
class Result:
    """How the work on one item ended.

    Args:
        value: what the function returned, None after a failure.
        failure: `timeout` where the work was stopped, `error` where it raised or its worker died.
        message: of the error.
    """

    value: Any = None
    failure: Literal["timeout", "error"] | None = None
    message: str = ""


class WorkerPool:
    """Processes that apply a function to items; no item can stall, exhaust or kill more than its own result.

    Workers start when they are first needed, from a server process that has imported `preload`, so that one which
    was stopped or died is replaced within milliseconds. They know nothing of the GPU or of the threads of this
    process. A batch of fewer than 8 items is served by one worker, if no more are running.

    Args:
        workers: processes.
        seconds: of wall clock for one item, once a worker has taken it.
        megabytes: that one item may add to the memory of its worker; Linux only, elsewhere there is no such limit.
        preload: modules that workers import before they take an item.

    Edge cases:
        Threads may share a pool; their batches take turns. After a fork the child has workers of its own. As with
        every start method but fork, workers import the main module of the program: keep what is heavy in it under
        `if __name__ == "__main__":`. A worker ends with its parent, at the latest when its item's time is over.

    >>> with WorkerPool(workers=1, seconds=5.0) as pool:
    ...     [(result.value, result.failure) for result in pool.map(abs, [-1, "x"])]
    [(1, None), (None, 'error')]
    """

    def __init__(self, *, workers: int, seconds: float, megabytes: int = 1024, preload: Sequence[str] = ()) -> None:
        for name, value in (("workers", workers), ("seconds", seconds), ("megabytes", megabytes)):
            if not value > 0:
                raise ValueError(f"{name} must be > 0, got {value}")
        self.workers, self.seconds, self.megabytes, self.preload = workers, seconds, megabytes, tuple(preload)
        self._forget()

    def _forget(self) -> None:
        """No workers yet, in this process."""
        self._pid, self._turn = os.getpid(), threading.Lock()
        self._pool: ProcessPool | None = None
        self._size = 0
        self._stop: Callable[[], Any] = lambda: None

    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Result]:
        """Apply a function to every item.

        Args:
            function: importable by its name.
            items: what `pickle` can carry; another is an error of its own.

        Returns:
            A result for each, in order.

        Raises:
            RuntimeError: the system lets no worker start.
        """
        if self._pid != os.getpid():
            self._forget()
        work = [_pickled(function, item) for item in items]
        with self._turn:
            results = self._attempt(work)
            lost = [row for row, result in enumerate(results) if result is None]
            if lost:
                self._close()
                for row, result in zip(lost, self._attempt([work[row] for row in lost]), strict=True):
                    results[row] = result
        return [result or Result(failure="error", message="the workers died, twice") for result in results]

    def close(self) -> None:
        """Stop the workers; they start again when they are needed."""
        if self._pid == os.getpid():
            with self._turn:
                self._close()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _close(self) -> None:
        self._stop()
        self._pool = None

    def _attempt(self, work: list[bytes | Result]) -> list[Result | None]:
        """A result for each; None for what was lost with the pool, as when its only worker is killed while idle."""
        try:
            futures = [item if isinstance(item, Result) else self._schedule(item, len(work)) for item in work]
            return [future if isinstance(future, Result) else self._result(future) for future in futures]
        except BaseException:  # such as KeyboardInterrupt: what is still queued must not delay the next batch
            self._close()
            raise

    def _schedule(self, item: bytes, batch: int) -> ProcessFuture | None:
        pool = self._running(1 if batch < SMALL else self.workers)
        try:
            return pool.schedule(_serve, args=(item, self.seconds, self.megabytes), timeout=self.seconds)
        except RuntimeError:  # it broke
            return None

    def _result(self, future: ProcessFuture | None) -> Result | None:
        """Wait for one whose predecessors are done, so that it is worked on now or next."""
        from pebble import ProcessExpired

        if future is None:
            return None
        try:
            error = future.exception(self.seconds + START)
        except TimeoutError:  # its worker died on the way to it, and the pool did not notice
            return None
        if isinstance(error, BrokenExecutor):
            return None
        if isinstance(error, TimeoutError):
            return Result(failure="timeout")
        if isinstance(error, ProcessExpired):
            return Result(failure="error", message=f"the worker died with exit code {error.exitcode}")
        return Result(failure="error", message=_message(error)) if error else future.result()

    def _running(self, size: int) -> ProcessPool:
        """A pool of at least this size; a smaller one, which is idle, makes room."""
        from pebble import ProcessPool

        if self._pool is None or self._size < size:
            self._close()
            context = _context(self.preload)
            self._pool = ProcessPool(size, initializer=_initialize, initargs=(self.preload,), context=context)
            self._size = size
            # When this object goes, or at exit, before multiprocessing waits for the workers.
            self._stop = Finalize(self, _stop, args=(self._pool,), exitpriority=10)
            assert self._pool.active  # asking starts it, here where a failure is no broken pool
        return self._pool


def _context(preload: Sequence[str]) -> BaseContext:
    """Workers are forked from a server without threads; the child of a fork cannot use its parent's."""
    if "forkserver" in multiprocessing.get_all_start_methods() and os.getpid() == _HOME:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["__main__", "pebble", __name__, *preload])
        return context
    return multiprocessing.get_context("spawn")


def _stop(pool: ProcessPool) -> None:
    pool.stop()
    pool.join()


def _pickled(function: Callable[[Any], Any], item: Any) -> bytes | Result:
    """Here, and not in a thread of the pool, which would not survive a failure."""
    try:
        return pickle.dumps((function, item))
    except Exception as error:
        return Result(failure="error", message=_message(error))


def _message(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:500]


def _initialize(preload: Sequence[str]) -> None:
    """In the worker, before its first item."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a handler in Python would wait for the end of a long power
    for module in preload:
        importlib.import_module(module)


def _serve(work: bytes, seconds: float, megabytes: int) -> Result:
    """In the worker: one item."""
    with _limits(seconds, megabytes):
        try:
            function, item = pickle.loads(work)
            return Result(function(item))
        except BaseException as error:  # such as SystemExit
            return Result(failure="error", message=_message(error))


@contextmanager
def _limits(seconds: float, megabytes: int) -> Iterator[None]:
    """Memory; and an alarm that ends a worker whose parent was killed and cannot stop it."""
    if sys.platform != "linux":
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + megabytes * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit if soft == resource.RLIM_INFINITY else min(limit, soft), hard))
    signal.setitimer(signal.ITIMER_REAL, 2 * seconds + 10)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
