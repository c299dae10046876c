"""Which gold answers a grader can check: those that it marks right when they are given as the answer."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from sgrpo_lightning.cache import default_cache_dir

MANY = 1000  # golds that take long enough to say so


def audit(grader: Any, golds: Sequence[Any]) -> list[bool]:
    """Whether each gold answer passes the grader's own `audit(golds)`.

    Equal answers are tried once, and what was found is kept in the user's cache folder: of several ranks, one does the
    work. Where that folder cannot be written, each does.
    """
    distinct = sorted({str(gold) for gold in golds})
    folder = default_cache_dir() / "audits"
    file = folder / f"{_digest(grader, distinct)}.json"
    try:
        from filelock import FileLock

        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(file.with_suffix(".lock")):
            if not file.is_file():
                if len(distinct) > MANY:
                    print(f"trying {len(distinct):,} gold answers once; the result is kept in {folder}", flush=True)
                scratch = file.with_suffix(".part")
                scratch.write_text(json.dumps(_failures(grader, distinct)))
                os.replace(scratch, file)
            failures = set(json.loads(file.read_text()))
    except OSError:
        failures = set(_failures(grader, distinct))
    return [str(gold) not in failures for gold in golds]


def _failures(grader: Any, distinct: Sequence[str]) -> list[str]:
    return [gold for gold, passes in zip(distinct, grader.audit(distinct), strict=True) if not passes]


def _digest(grader: Any, distinct: Sequence[str]) -> str:
    """Of the answers, and of what judges them."""
    judge = f"{type(grader).__qualname__} {getattr(grader, 'version', '')}"
    return blake2b("\0".join([judge, *distinct]).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
