"""Folders of runs, written by hand."""

import json
from pathlib import Path

import yaml

from sgrpo_lightning.report.runs import Run


def write_run(folder, objective, seed, *, last=None, first=None, rows=None, config=None, domain="llm", **summary):
    """A run's folder. `last` and `first`: metric -> value; without `rows` there is no metrics.jsonl."""
    folder.mkdir(parents=True)
    summary = {"domain": domain, "task": "toy", "objective": objective, "seed": seed, "seconds": 10.0, **summary}
    summary |= {f"{name}/first": value for name, value in (first or {}).items()}
    summary |= {f"{name}/last": value for name, value in (last or {}).items()}
    (folder / "summary.json").write_text(json.dumps(summary))
    if rows is not None:
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if config is not None:
        (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))


def made(objective, seed=0, *, top1=None, settings=None, rows=(), domain="imagenet", task="toy", **summary):
    """A run that lies in no folder."""
    summary = {"domain": domain, "task": task, "objective": objective, "seed": seed, "seconds": 10.0, **summary}
    if top1 is not None:
        summary["eval/top1/last"] = top1
    return Run(Path(f"{objective}-{seed}"), summary, list(rows), settings or {})


def columns(text):
    """The rows of a Markdown table, keyed by their column heads; the first column without its backticks."""
    heads, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line)
    found = [dict(zip(heads, row, strict=True)) for row in rows]
    return {row["objective"].strip("`"): row for row in found}
