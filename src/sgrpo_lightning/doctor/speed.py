"""How fast the soak went, and what follows for the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sgrpo_lightning.doctor.soak import Soak
from sgrpo_lightning.doctor.verdict import Finding

PARTS = ("sync", "sample", "reward", "learn")


def tell_policy_speed(rows: Sequence[Mapping[str, float]], *, factor: float, iterations: int) -> Finding:
    """Of iterations of the loop; the first, in which things warm up, does not count.

    Args:
        factor: prompts of an iteration of the run for each of one here.
    """
    settled = rows[1:] or rows
    if not settled:
        return Finding("speed", "skipped", "no iteration was completed")
    mean = {name: sum(row[name] for row in settled) / len(settled) for name in ("tokens/sum", *map(_seconds, PARTS))}
    sampled, learned = (mean["tokens/sum"] / max(mean[_seconds(part)], 1e-9) for part in ("sample", "learn"))
    seconds = mean["seconds/sync"] + factor * sum(mean[_seconds(part)] for part in PARTS[1:])
    shares = ", ".join(f"{part} {mean[_seconds(part)] * (1 if part == 'sync' else factor):.2f}" for part in PARTS)
    return Finding(
        "speed",
        "ok",
        f"sampling {sampled:,.0f} tokens/s, learning {learned:,.0f}; about {seconds:.2f} s an iteration ({shares}), "
        f"{duration(seconds * iterations)} for {iterations} without evaluation",
    )


def tell_image_speed(rows: Sequence[Mapping[str, float]], *, batch_size: int, steps: int) -> Finding:
    settled = rows[1:] or rows
    if not settled:
        return Finding("speed", "skipped", "no iteration was completed")
    rate = sum(row["images_per_second"] for row in settled) / len(settled)
    return Finding(
        "speed",
        "ok",
        f"{rate:,.0f} images/s; {duration(steps * batch_size / rate)} for {steps} steps without evaluation",
    )


def tell_step_speed(soak: Soak, *, steps: int) -> Finding:
    if len(soak.ends) < 2:
        return Finding("speed", "skipped", "fewer than two steps were made")
    seconds = (soak.ends[-1] - soak.ends[0]) / (len(soak.ends) - 1)
    return Finding("speed", "ok", f"{seconds:.2f} s a step; {duration(seconds * steps)} for {steps}")


def duration(seconds: float) -> str:
    """In words: 45 s, 12 min, 3.4 h.

    >>> duration(45), duration(700), duration(12345)
    ('45 s', '12 min', '3.4 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _seconds(part: str) -> str:
    return f"seconds/{part}"
