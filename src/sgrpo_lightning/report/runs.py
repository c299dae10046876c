"""Runs, read from their folders, and what a report shows of them."""

from __future__ import annotations

import glob
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sgrpo_lightning.report.rows import Row, read_rows

METRICS = {"llm": ["eval/pass@1"], "imagenet": ["eval/top1", "eval/pass@1", "eval/pass@128"]}
X = {"llm": "iteration", "imagenet": "step"}

# Keys that do not say what was trained: names and records of a run, where it ran, and what changes speed alone.
# `default_tau` shows in the objective's tau, where there is one, `grader` as the reward, and so on.
UNTOLD = {"seed", "run_dir", "resume", "identity", "callbacks", "logger", "shared", "headline", "default_root_dir"}
UNTOLD |= {"accelerator", "devices", "num_nodes", "strategy", "default_tau", "micro_batch_size", "num_workers"}
UNTOLD |= {"prefetch_factor", "evaluation_batch_size", "cache_dir", "compile", "channels_last", "workers"}
UNTOLD |= {"grader", "shaping", "countdown_instruction", "countdown_target", "track_text"}


@dataclass(frozen=True, slots=True)
class Run:
    """A run's folder, read.

    Args:
        settings: dotted key -> value, of `config.yaml`; empty where there is none.
        headline: the metric that the run itself ends with.
    """

    folder: Path
    summary: Mapping[str, Any]
    rows: Sequence[Row]
    settings: Mapping[str, Any] = field(default_factory=dict)
    headline: str | None = None

    @property
    def objective(self) -> str:
        return self.summary["objective"]

    @property
    def seed(self) -> int:
        return self.summary["seed"]

    def last(self, metric: str) -> float | None:
        """The last value of a metric; None where it was not measured."""
        return self.summary.get(f"{metric}/last", self.summary.get(metric))

    def first(self, metric: str) -> float | None:
        """The value before training; None where it was not measured."""
        return self.summary.get(f"{metric}/first")

    def curve(self, metric: str, *, x: str) -> dict[float, float]:
        """x -> value, of the rows that have both."""
        return {row[x]: row[metric] for row in self.rows if x in row and metric in row}


def find_runs(pattern: str) -> list[Run]:
    """The runs below every folder that matches, in the order of their paths.

    Args:
        pattern: as in the shell; ** crosses folders. Quote it on the command line.
    """
    folders = {Path(path) for path in glob.glob(pattern, recursive=True)}
    summaries = sorted({file for folder in folders for file in folder.glob("summary.json")})
    if not summaries:
        raise ValueError(f"runs={pattern}: no run with a summary.json there")
    return [read_run(file.parent) for file in summaries]


def read_run(folder: Path) -> Run:
    """A run from its `summary.json`, `metrics.jsonl` and `config.yaml`; the last two may be missing."""
    summary, config = json.loads((folder / "summary.json").read_text()), folder / "config.yaml"
    told = (yaml.safe_load(config.read_text()) if config.is_file() else None) or {}
    settings = {"task": summary.get("task"), **flat(told)} if config.is_file() else {}
    return Run(folder, summary, read_rows(folder), settings, told.get("headline", {}).get("metric"))


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The settings of a resolved configuration: dotted key -> number or text, without the keys of UNTOLD.

    Of a `_target_` the last part counts. Null counts as not set.

    >>> flat({"seed": 1, "steps": 9, "objective": {"_target_": "heads.grpo", "_partial_": True, "eps": None}})
    {'steps': 9, 'objective._target_': 'grpo'}
    """
    settings: dict[str, Any] = {}
    for key, value in config.items():
        if key in UNTOLD or value is None:
            continue
        if isinstance(value, Mapping):
            settings |= flat(value, f"{prefix}{key}.")
        elif key == "_target_":
            settings[f"{prefix}_target_"] = value.rpartition(".")[2]
        elif not str(key).startswith("_"):
            settings[f"{prefix}{key}"] = json.dumps(value) if isinstance(value, list) else value
    return settings


def domain_of(runs: Sequence[Run]) -> str:
    """The domain that all the runs share. ValueError where they do not."""
    domains = sorted({run.summary["domain"] for run in runs})
    if len(domains) > 1:
        raise ValueError(
            f"the runs of a report share one domain, got {' and '.join(domains)}; "
            f"narrow them, for instance runs='runs/{domains[0]}/**'"
        )
    return domains[0]


def what_to_show(
    runs: Sequence[Run], *, metrics: str | Sequence[str] | None = None, x: str | None = None
) -> tuple[list[str], str]:
    """The metrics of a report and what they are drawn against; None takes those of the domain, or of the tasks.

    Raises:
        ValueError: runs of several domains; a metric that no run has; an x that no row has.
    """
    domain = domain_of(runs)
    headlines = dict.fromkeys(run.headline for run in runs if run.headline)
    usual = list(headlines) if domain == "llm" and headlines else METRICS[domain]
    names = [metrics] if isinstance(metrics, str) else list(metrics or usual)
    columns, known = {name for run in runs for row in run.rows for name in row}, _measured(runs)
    missing = [name for name in names if name not in known | columns]
    if missing and (metrics or len(missing) == len(names)):
        kinds = {name.partition("/")[0] for name in missing}
        near = sorted(name for name in known | columns if name.partition("/")[0] in kinds)
        there = ", ".join(near or sorted(known | columns))
        raise ValueError(f"metrics: no run has {' or '.join(missing)}; there are {there}")
    x = x or X[domain]
    if columns and x not in columns:
        counts = ", ".join(sorted(name for name in columns if "/" not in name))
        raise ValueError(f"x={x}: no row has it; there are {counts}")
    return names, x


def _measured(runs: Sequence[Run]) -> set[str]:
    """The metrics whose last value is in a summary."""
    numbers = [name for run in runs for name, value in run.summary.items() if isinstance(value, int | float)]
    return {name.removesuffix("/last") for name in numbers if not name.endswith("/first")}


def unfinished(runs: Sequence[Run]) -> list[str]:
    """The runs that did fewer iterations or steps than their settings say."""
    name = X[domain_of(runs)]
    found = []
    for run in runs:
        planned = run.settings.get(f"{name}s", 0)
        done = run.summary.get(f"{name}s", run.summary.get(name, planned))
        if done < planned:
            found.append(f"{run.folder} ({done:g} of {planned:g} {name}s)")
    return found
