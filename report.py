"""Compares runs: `python report.py runs='runs/llm/countdown/**'`."""

from sgrpo_lightning.run import command, report

if __name__ == "__main__":
    command(report, __file__, config_name="report")
