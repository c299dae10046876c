"""What a check finds, and the list in which findings are collected and printed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch.distributed as distributed

Status = Literal["ok", "warning", "failed", "skipped"]
WORST_FIRST: tuple[Status, ...] = ("failed", "warning", "skipped", "ok")


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of a check.

    Args:
        name: of the check.
        status: a warning does not fail the examination.
        figures: what was measured, or why it was not.
        advice: what to do; empty where all is well.
    """

    name: str
    status: Status
    figures: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.status:<8} {self.name:<9} {self.figures}" + f"\n{'':<19}-> {self.advice}" * bool(self.advice)


Check = Callable[[], Finding]


Reasons = Sequence[tuple[bool, str]]
"""Whether something is wrong, and what to do then."""


def judge(name: str, figures: str, *, failures: Reasons, warnings: Reasons = ()) -> Finding:
    """A finding from what could be wrong."""
    failed, warned = ([advice for applies, advice in reasons if applies] for reasons in (failures, warnings))
    status: Status = "failed" if failed else "warning" if warned else "ok"
    return Finding(name, status, figures, "; ".join([*failed, *warned]))


def attempted(name: str, check: Check) -> Finding:
    """What the check finds; one that raises has failed."""
    try:
        return check()
    except Exception as error:
        reason = str(error).strip().splitlines() or [""]
        return Finding(
            name, "failed", f"{type(error).__name__}: {reason[0]}", "this check could not end; see the error"
        )


def worst(findings: Sequence[Finding]) -> Finding:
    """Of the ranks' findings in their order, the one to show."""
    rank = min(range(len(findings)), key=lambda i: WORST_FIRST.index(findings[i].status))
    found = findings[rank]
    return found if rank == 0 else replace(found, figures=f"rank {rank}: {found.figures}")


class Checklist:
    """Runs checks and prints each line as soon as it is known, on the first rank alone.

    Args:
        title: what is examined.
        first: whether this is that rank.
    """

    def __init__(self, title: str, *, first: bool = True) -> None:
        self.first, self.findings = first, list[Finding]()
        self._started = time.perf_counter()
        self._say(title)

    def run(self, name: str, check: Check) -> None:
        """On all ranks that know one another together: the worst of their findings counts."""
        self.add(worst(of_all_ranks(attempted(name, check))))

    def add(self, finding: Finding) -> None:
        self.findings.append(finding)
        self._say(str(finding))

    def close(self) -> int:
        """Print the totals and return how many checks failed."""
        counts = Counter(finding.status for finding in self.findings)
        totals = ", ".join(f"{counts[status]} {status}" for status in ("ok", "warning", "failed", "skipped"))
        self._say(f"{totals}; {time.perf_counter() - self._started:.0f} s")
        return counts["failed"]

    def _say(self, text: str) -> None:
        if self.first:
            print(text, flush=True)


def of_all_ranks(value: Any) -> list[Any]:
    if not distributed.is_initialized() or distributed.get_world_size() == 1:
        return [value]
    values: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(values, value)
    return values
