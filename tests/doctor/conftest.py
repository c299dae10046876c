"""The examination, run in this process."""

import logging
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def examine(monkeypatch, capfd, tmp_path):
    """(*arguments) -> (exit code, {name of a check: its line and its advice}) of `python doctor.py *arguments`."""
    from sgrpo_lightning.run import command, doctor

    monkeypatch.chdir(tmp_path)
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level

    def run(*arguments, config_name="train"):
        monkeypatch.setattr(sys, "argv", [str(ROOT / "doctor.py"), *map(str, arguments)])
        code = 0
        try:
            command(doctor, str(ROOT / "doctor.py"), config_name=config_name)
        except SystemExit as ended:
            code = ended.code
        root.handlers[:], root.level = handlers, level  # Hydra puts its own in their place
        out, err = capfd.readouterr()
        return code, Report(out, err)

    return run


class Report:
    """What was printed."""

    def __init__(self, out, err):
        self.text, self.err, self.lines, name = out, err, {}, ""
        for line in out.splitlines():
            status, *more = line.split(maxsplit=2)
            if status in ("ok", "warning", "failed", "skipped") and len(more) == 2:
                name = more[0]
                self.lines[name] = line
            elif line.lstrip().startswith("->"):
                self.lines[name] += line

    def status(self, status):
        """The names of the checks with that status, in order."""
        return [name for name, line in self.lines.items() if line.split()[0] == status]
