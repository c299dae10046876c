"""Work that several servers share: each takes the next piece when it has time, and what one drops another takes up."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sgrpo_lightning.samplers.http import GivenUp, Server, Unavailable

FIRST_PAUSE, LONGEST_PAUSE = 0.25, 15.0  # seconds before a server that failed is asked again; doubled each time
TRIES = 5
"""A piece that fails so often, on servers that had served others well, is to blame itself."""


@dataclass
class Standing:
    """How a server has done lately."""

    failures: int = 0  # one after the other
    since: float = 0.0  # of the first of them
    resting_until: float = 0.0
    at_work: int = 0  # pieces that it has now
    given_up: Unavailable | None = None

    def failed(self, error: Unavailable, patience: float) -> None:
        now = time.monotonic()
        self.since = self.since if self.failures else now
        if now >= self.resting_until:  # pieces that fail together are one failure
            self.failures += 1
            self.resting_until = now + min(FIRST_PAUSE * 2 ** (self.failures - 1), LONGEST_PAUSE)
        if isinstance(error, GivenUp) or now - self.since > patience:
            self.given_up = error

    def served(self) -> None:
        self.failures, self.resting_until = 0, 0.0

    def free_in(self) -> float | None:
        """Seconds until it may take a piece; None: when another of its pieces is done. A doubtful one has one only."""
        if self.failures and self.at_work:
            return None
        return max(0.0, self.resting_until - time.monotonic())


class Crew:
    """Servers that share work.

    One that fails rests for a while, longer each time, and its pieces go to the others; then it gets a single one to
    prove itself. Gone for longer than `patience` it is given up until the next call. Without any server left the
    work ends in an error; while there is one, nothing is lost.

    Args:
        servers: in the order in which they are given their first pieces.
        in_flight: pieces that a server has at a time.
        patience: seconds.
    """

    def __init__(self, servers: Sequence[Server], *, in_flight: int, patience: float) -> None:
        self.servers, self.in_flight, self.patience = servers, in_flight, patience
        self._failures = {server.url: 0 for server in servers}  # when the last call ended

    def run(self, work: Callable[[Server, Any], Any], pieces: Sequence[Any]) -> list[Any]:
        """The results, in the order of the pieces.

        Args:
            work: (server, piece) -> result. `Unavailable` blames the server, any other error ends everything.
        """
        now = time.monotonic()
        standings = {url: Standing(failures=min(count, 1), since=now) for url, count in self._failures.items()}
        shift = _Shift(work, pieces, standings, self.patience)
        for _ in range(min(self.in_flight, len(pieces))):
            for server in self.servers:
                # A daemon: where the work ends in an error, nobody waits for what is still under way.
                threading.Thread(target=shift.serve, args=(server,), daemon=True).start()
        results = shift.results()
        self._failures = {url: standing.failures for url, standing in standings.items()}
        return results


class _Shift:
    """One call of a crew. Its lock guards everything in it."""

    def __init__(
        self,
        work: Callable[[Server, Any], Any],
        pieces: Sequence[Any],
        standings: dict[str, Standing],
        patience: float,
    ) -> None:
        self._work, self._pieces, self._standings, self._patience = work, pieces, standings, patience
        self._results: list[Any] = [None] * len(pieces)
        self._waiting, self._left = deque(range(len(pieces))), len(pieces)
        self._tries = [0] * len(pieces)
        self._error: Exception | None = None
        self._changed = threading.Condition()

    def results(self) -> list[Any]:
        with self._changed:
            self._changed.wait_for(self._over)
        if self._error is not None:
            raise self._error
        return self._results

    def serve(self, server: Server) -> None:
        standing = self._standings[server.url]
        while (index := self._take(standing)) is not None:
            try:
                result = self._work(server, self._pieces[index])
            except Unavailable as error:
                self._back(index, standing, error)
            except Exception as error:
                self._stop(error)
            else:
                self._done(index, standing, result)

    def _over(self) -> bool:
        return self._left == 0 or self._error is not None

    def _take(self, standing: Standing) -> int | None:
        """The next piece, when there is one and the server may have it; None when it is not needed any more."""
        with self._changed:
            while not self._over() and standing.given_up is None:
                free_in = standing.free_in()
                if free_in == 0 and self._waiting:
                    standing.at_work += 1
                    return self._waiting.popleft()
                self._changed.wait(free_in or None)
        return None

    def _done(self, index: int, standing: Standing, result: Any) -> None:
        with self._changed:
            self._results[index] = result
            self._left -= 1
            standing.at_work -= 1
            standing.served()
            self._changed.notify_all()

    def _back(self, index: int, standing: Standing, error: Unavailable) -> None:
        with self._changed:
            self._tries[index] += standing.failures == 0
            standing.at_work -= 1
            standing.failed(error, self._patience)
            self._waiting.appendleft(index)
            lost = [one.given_up for one in self._standings.values()]
            if all(lost):
                self._error = Unavailable("; ".join(dict.fromkeys(map(str, lost))))
            elif self._tries[index] >= TRIES:
                self._error = error
            self._changed.notify_all()

    def _stop(self, error: Exception) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()
