"""From a command line to a run: the one file that knows Hydra."""

from __future__ import annotations

import copy
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import hydra
import lightning as L
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Checkpoint
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from sgrpo_lightning.callbacks.checkpoint import CheckpointError, check_world, checkpoints, write_whole
from sgrpo_lightning.callbacks.progress import quieten
from sgrpo_lightning.callbacks.run_log import RunLogger
from sgrpo_lightning.distributed.launch import launch, leave_together, processes_to_launch
from sgrpo_lightning.distributed.slurm import requeue, slurm_job
from sgrpo_lightning.doctor import examine, failures_of, without_traces
from sgrpo_lightning.overrides import check_command_line, flags_first, resumed_command_line
from sgrpo_lightning.provenance import provenance
from sgrpo_lightning.report import find_runs, what_to_show, write_report
from sgrpo_lightning.samplers import SamplerError
from sgrpo_lightning.tasks.survey import DataChanged, check_fingerprint


def command(function: Callable[[DictConfig], Any], script: str, *, config_name: str) -> None:
    """Run `function` on the configuration that the command line describes.

    A mistake in it ends here, before any work, with one line that names the key and the nearest that exists.

    Args:
        script: the calling file; its neighbour `conf/` holds the configuration.
        config_name: default of Hydra's --config-name.
    """
    conf = str(Path(script).resolve().parent / "conf")
    try:
        sys.argv[1:] = flags_first(resumed_command_line(sys.argv[1:], holds_checkpoint=lambda d: bool(checkpoints(d))))
        check_command_line(sys.argv[1:], conf, config_name)
    except ValueError as error:
        sys.exit(f"error: {error}")
    hydra.main(version_base="1.3", config_path=conf, config_name=config_name)(partial(_reported, function))()


def _reported(function: Callable[[DictConfig], Any], cfg: DictConfig) -> Any:
    """A mistake in the settings is a line or a few, not a stack of frames."""
    try:
        return function(cfg)
    except InstantiationException as error:
        if isinstance(error.__cause__, (ValueError, OSError, ImportError, MisconfigurationException)):
            sys.exit(f"error: {_beginning(error.__cause__)}")
        raise
    except ConfigurationError as error:
        sys.exit(f"error: {_beginning(error)}")
    except OmegaConfBaseException as error:
        sys.exit(f"error: {str(error).splitlines()[0]}")


def _beginning(error: BaseException) -> str:
    """The message, which may go on to say in a few indented lines what to do; of anything else the first line."""
    first, *more = str(error).splitlines()
    return "\n".join([first, *(itertools.takewhile(lambda line: line.startswith("  "), more))])


INTERRUPTED = 130
"""Exit code of a run that was asked to stop; it ends a sweep too."""


class ConfigurationError(ValueError):
    """Settings that cannot run together."""


def train(cfg: DictConfig) -> None:
    """Train what `cfg` describes, or go on with the run in `cfg.resume`."""
    anew_or_on = cfg.resume == "auto"
    if anew_or_on and cfg.run_dir is None:
        raise ConfigurationError("resume=auto: no run_dir to look into; give run_dir=<folder>")
    settle(cfg)
    if anew_or_on:
        cfg.resume = cfg.run_dir if checkpoints(Path(cfg.run_dir)) else None
    if processes := processes_to_launch(cfg.trainer.accelerator, cfg.trainer.devices, cfg.trainer.num_nodes):
        launch(processes, [*_arguments(), f"run_dir={Path(cfg.run_dir).absolute()}"])
        return
    quieten()
    L.seed_everything(cfg.seed, verbose=False)
    module, datamodule, trainer = build(cfg)
    run_dir = Path(cfg.run_dir)
    checkpoint = latest_checkpoint(Path(cfg.resume)) if cfg.resume else None
    try:
        note = _check_folder(run_dir, datamodule, trainer, checkpoint)
        if trainer.is_global_zero:
            _introduce(cfg, run_dir, datamodule, trainer, checkpoint, note)
        trainer.fit(module, datamodule=datamodule, ckpt_path=checkpoint)
    except DataChanged as error:
        raise ConfigurationError(f"resume={cfg.resume}: {error}") from error
    except (CheckpointError, SamplerError) as error:
        raise ConfigurationError(error) from error
    leave_together()
    if trainer.is_global_zero:
        _conclude(trainer, run_dir, cfg.get("headline", {"metric": "", "label": ""}))


def doctor(cfg: DictConfig) -> None:
    """Examine the run that `cfg` describes, of which nothing stays; the exit code is 1 where a check fails."""
    settle(cfg)
    run_dir = Path(cfg.run_dir).absolute()
    if processes := processes_to_launch(cfg.trainer.accelerator, cfg.trainer.devices, cfg.trainer.num_nodes):
        failed = failures_of(lambda: launch(processes, [*_arguments(), f"run_dir={run_dir}"]))
    else:
        quieten()
        L.seed_everything(cfg.seed, verbose=False)
        with without_traces(OmegaConf.to_container(cfg), cfg.run_dir) as settings:
            try:
                failed = examine(*build(OmegaConf.create(settings)), run_dir)
            except ValueError as error:
                raise ConfigurationError(error) from error
            leave_together()
    if failed:
        sys.exit(1)


def report(cfg: DictConfig) -> None:
    """Compare the runs that `cfg.runs` matches."""
    try:
        runs = find_runs(cfg.runs)
        metrics, x = what_to_show(runs, metrics=cfg.metrics, x=cfg.x)
    except ValueError as error:
        raise ConfigurationError(error) from error
    text = write_report(runs, Path(cfg.out), metrics=metrics, x=x, labels=dict(cfg.labels or {}))
    print(f"{text}\ntable and curves in {cfg.out}")


def settle(cfg: DictConfig) -> None:
    """Give the run its identity and its folder, and resolve every interpolation."""
    hydra_cfg = HydraConfig.get()
    choices = hydra_cfg.runtime.choices
    domain, subject = choices.get("domain", "llm"), choices.get("task") or choices.get("data")
    objective = choices.get("objective", hydra_cfg.job.config_name)
    with open_dict(cfg):
        for group, choice in (("objective", objective), ("model", choices.get("model"))):
            allowed = cfg.get(group, {}).pop("domains", [domain])
            if domain not in allowed:
                raise ConfigurationError(f"{group}={choice} serves domain={' or '.join(allowed)} only")
        if domain == "imagenet" and str(strategy := choices.get("strategy")).startswith("deepspeed"):
            raise ConfigurationError(f"strategy={strategy} serves domain=llm only; use strategy=fsdp2")
        cfg.identity = {"domain": domain, "task": subject, "objective": objective, "seed": cfg.seed}
        if cfg.run_dir is None:
            cfg.run_dir = f"runs/{domain}/{subject}/{objective}/{cfg.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
        if cfg.trainer.accelerator == "auto":  # not Apple's GPU: it lacks float64
            cfg.trainer.accelerator = "cuda" if torch.cuda.is_available() else "cpu"
        if cfg.trainer.precision is None:
            cfg.trainer.precision = "32-true" if cfg.trainer.accelerator == "cpu" else "bf16-mixed"
    OmegaConf.resolve(cfg)


def build(cfg: DictConfig) -> tuple[L.LightningModule, L.LightningDataModule, L.Trainer]:
    """The objects of a settled configuration. What `cfg.shared` names is built once and handed to both modules.

    It is built last: a mistake in the other settings ends the run before a model is loaded.
    """
    make = partial(instantiate, _convert_="all")
    module, datamodule = (make(cfg[name], _partial_=True) for name in ("module", "datamodule"))
    _try_settings(**module.keywords)
    callbacks, loggers = ([make(node) for node in group.values() if node] for group in (cfg.callbacks, cfg.logger))
    trainer = make(cfg.trainer, _partial_=True)
    try:
        checkpoints_too = any(isinstance(callback, Checkpoint) for callback in callbacks)
        trainer = trainer(callbacks=callbacks, logger=loggers, enable_checkpointing=checkpoints_too)
        shared = {name: make(cfg[key]) for name, key in cfg.shared.items()}
        return module(**shared), datamodule(**shared), trainer
    except (ValueError, MisconfigurationException) as error:
        raise ConfigurationError(error) from error


def _try_settings(*, head: Any = None, plan: Any = None, optimizer: Any = None, **_: Any) -> None:
    """Use once, on next to nothing, what is used only after the first rollout: what it refuses, it refuses now."""
    trials: dict[str, Callable[[], Any]] = {}
    if head is not None and plan is not None:
        trials["objective"] = lambda: copy.deepcopy(head)(torch.zeros(1, plan.samples_per_group))
    if optimizer is not None:
        trials["optimizer"] = lambda: optimizer([torch.nn.Parameter(torch.zeros(1))])
    for name, trial in trials.items():
        try:
            trial()
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"{name}: {error}") from error


def latest_checkpoint(run_dir: Path) -> Path:
    """The newest complete checkpoint of a run."""
    if found := checkpoints(run_dir):
        return found[-1]
    raise ConfigurationError(
        f"resume={run_dir}: no checkpoint there; the run ended before its first iteration did; "
        f"to begin it anew give its settings with run_dir={run_dir}"
    )


def _check_folder(run_dir: Path, datamodule: Any, trainer: L.Trainer, checkpoint: Path | None) -> str | None:
    """Before a file of it is touched, on every rank: one that stopped alone would leave the others waiting.

    Returns:
        What to know about the checkpoint from which the run goes on.
    """
    there = [path.resolve() for path in checkpoints(run_dir)]
    if there and (checkpoint is None or checkpoint.resolve() not in there):
        raise ConfigurationError(f"run_dir={run_dir} holds a run already; resume={run_dir} goes on with it")
    if checkpoint and (run_dir / "provenance.json").is_file():
        check_fingerprint(_of_data(datamodule), json.loads((run_dir / "provenance.json").read_text()).get("data", {}))
    return check_world(checkpoint, trainer) if checkpoint else None


def _of_data(datamodule: Any) -> dict[str, Any]:
    return {name: getattr(datamodule, name) for name in ("fingerprint", "notes") if hasattr(datamodule, name)}


def _introduce(
    cfg: DictConfig, run_dir: Path, datamodule: Any, trainer: L.Trainer, checkpoint: Path | None, note: str | None
) -> None:
    """Leave the run's settings in its folder, and say where that is."""
    facts = provenance([a for a in _arguments() if not a.startswith("resume=")], seed=cfg.seed)
    facts["data"] = _of_data(datamodule)
    if checkpoint is None:  # rows of a start that never reached its first checkpoint
        for logger in trainer.loggers:
            if isinstance(logger, RunLogger):
                logger.forget_after(-1)
    run_dir.mkdir(parents=True, exist_ok=True)
    write_whole(run_dir / "config.yaml", OmegaConf.to_yaml(cfg))
    write_whole(run_dir / "provenance.json", json.dumps(facts, indent=2) + "\n")
    print(f"run folder: {run_dir}", *facts["data"].get("notes", []), *filter(None, [note]), sep="\n", flush=True)


def _conclude(trainer: L.Trainer, run_dir: Path, headline: Mapping[str, str]) -> None:
    if left := _left(trainer):
        print(f"stopped after {left}", flush=True)
        _requeue_or_explain(trainer, run_dir)
        # A launcher would take it for a failure, of this run or of the whole job.
        if not {"LOCAL_RANK", "SLURM_PROCID"} & os.environ.keys():
            sys.exit(INTERRUPTED)
        return
    summary_file = run_dir / "summary.json"
    if not summary_file.is_file():
        print("done")
        return
    summary = json.loads(summary_file.read_text())
    before, after = (summary.get(f"{headline['metric']}/{when}") for when in ("first", "last"))
    gain = "" if after is None or before is None else f"{headline['label']} {before:.3f} -> {after:.3f}, "
    print(f"done: {gain}{summary['seconds']:.0f} s; curves in {run_dir}/plots")


def _left(trainer: L.Trainer) -> str:
    """How far a run came that ended before its time; nothing where it did not."""
    if not (trainer.interrupted or trainer.should_stop):
        return ""
    iterations = (trainer.current_epoch, trainer.max_epochs or 0, "iterations")
    done, of, unit = (trainer.global_step, trainer.max_steps, "steps") if trainer.max_steps > 0 else iterations
    return f"{done} of {of} {unit}" if done < of else ""


def _requeue_or_explain(trainer: L.Trainer, run_dir: Path) -> None:
    """After SLURM's warning of a time limit the job goes back into its queue; else a line says how to go on."""
    job = slurm_job() if any(getattr(callback, "requeue", False) for callback in trainer.callbacks) else None  # type: ignore
    failed = job and requeue(job)
    if failed:
        print(f"SLURM did not requeue job {job}: {failed}")
    if job and not failed:
        print(f"SLURM requeued job {job}; with resume=auto in its script it goes on from here", flush=True)
    else:
        print(f"go on with\n  python {Path(sys.argv[0]).name} resume={run_dir}", flush=True)


def _arguments() -> list[str]:
    """The command line of this job: the flags that choose the configuration, and the overrides."""
    hydra_cfg = HydraConfig.get()
    name, sources = hydra_cfg.job.config_name, hydra_cfg.runtime.config_sources
    flags = [] if name == Path(sys.argv[0]).stem else [f"--config-name={name}"]
    flags += [f"--config-dir={source.path}" for source in sources if source.provider == "command-line"]
    search = [override for override in hydra_cfg.overrides.hydra if override.startswith("hydra.searchpath=")]
    return [*flags, *search, *hydra_cfg.overrides.task]
