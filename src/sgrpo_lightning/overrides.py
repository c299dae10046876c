"""Checks a command line against the configuration before Hydra runs it."""

from __future__ import annotations

import argparse
import difflib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override
from hydra.errors import ConfigCompositionException, OverrideParseException
from omegaconf import DictConfig, OmegaConf


def check_command_line(arguments: Sequence[str], conf: str, config_name: str) -> None:
    """ValueError for a key, group or option that does not exist, with the nearest that does.

    Args:
        arguments: of the command line; flags are left to Hydra.
        conf: absolute path of the configuration folder.
        config_name: of the primary configuration, where no --config-name is given.
    """
    flags, overrides = _flags(arguments), _parsed(_overrides(arguments))
    plain = [override for override in overrides if not (override.is_add() or override.is_delete())]
    search = _search_path(flags.config_dir, overrides)
    primary = flags.config_name or config_name
    with initialize_config_dir(conf, version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        options_of = partial(loader.get_group_options, config_name=primary, overrides=[search])
        groups = set(options_of("", results_filter=ObjectType.GROUP))
        chosen = []
        for override in plain:
            if override.key_or_group in groups:
                options = _with_nested(override.key_or_group, options_of)
                for value in _values(override):
                    _check_name(f"{override.key_or_group}=", value, options)
                chosen.append(f"{override.key_or_group}={_values(override)[0]}")
        try:
            known = list(_keys(compose(primary, overrides=[search, *chosen])))
        except ConfigCompositionException as error:
            raise ValueError(f"{str(error).splitlines()[0]} The chosen domain or task has no such choice") from error
        for override in plain:
            if override.key_or_group not in groups and not override.key_or_group.startswith(("hydra.", "hydra/")):
                _check_name("", str(override.key_or_group), known)


def _with_nested(group: str, options_of: Callable[..., list[str]]) -> list[str]:
    """The options of a group, and those of its folders as `folder/option`."""
    folders = options_of(group, results_filter=ObjectType.GROUP)
    nested = [f"{folder}/{option}" for folder in folders for option in options_of(f"{group}/{folder}")]
    return [*options_of(group, results_filter=ObjectType.CONFIG), *nested]


def _flags(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config-name", "-cn")
    parser.add_argument("--config-dir", "-cd")
    return parser.parse_known_args(list(arguments))[0]


def _overrides(arguments: Sequence[str]) -> list[str]:
    return [argument for argument in arguments if "=" in argument and not argument.startswith("-")]


def _parsed(overrides: list[str]) -> list[Override]:
    try:
        return OverridesParser.create().parse_overrides(overrides)
    except OverrideParseException as error:
        raise ValueError(f"cannot read {error.override}: {str(error).splitlines()[0]}") from error


def _search_path(config_dir: str | None, overrides: Iterable[Override]) -> str:
    """The override that looks for options in the folder of --config-dir and in those of hydra.searchpath too."""
    folders = [f"file://{Path(config_dir).absolute()}"] if config_dir else []
    for override in overrides:
        if override.key_or_group == "hydra.searchpath":
            folders += _values(override)
    quoted = ",".join(f"'{folder}'" for folder in folders)
    return f"hydra.searchpath=[{quoted}]"


def _values(override: Override) -> list[str]:
    """The value as text, or the values of a list or a sweep."""
    value: Any = override.value()
    value = value.list if isinstance(value, ChoiceSweep) else value
    return [str(item) for item in (value if isinstance(value, list) else [value])]


def _check_name(prefix: str, name: str, known: Iterable[str]) -> None:
    names = list(known)
    if name in names or name == "None":
        return
    parent, _, leaf = name.rpartition(".")
    beside = {key.rpartition(".")[2]: key for key in names if parent and key.rpartition(".")[0] == parent}
    if beside:  # the part before the last dot exists, so look there alone
        near = [beside[close] for close in difflib.get_close_matches(leaf, beside, n=1, cutoff=0.5)]
    else:  # perhaps a key that was named without its group: tau for objective.tau
        near = sorted((key for key in names if key.rpartition(".")[2] == name), key=len)
        near = near or difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    there = sorted(key for key in beside.values() or names if not key.rpartition(".")[2].startswith("_"))
    hint = f"did you mean {prefix}{near[0]}?" if near else f"there are {', '.join(there[:30])}"
    raise ValueError(f"unknown {prefix}{name}; {hint}")


def _keys(cfg: DictConfig, prefix: str = "") -> Iterator[str]:
    """Every key, dotted, of nodes and of leaves."""
    for key in cfg:
        name = f"{prefix}{key!s}"
        yield name
        if OmegaConf.is_dict(child := OmegaConf.select(cfg, str(key), throw_on_missing=False)):
            yield from _keys(child, f"{name}.")


def flags_first(arguments: Sequence[str]) -> list[str]:
    """The same command line as Hydra's parser takes it: it refuses overrides on both sides of a flag."""
    overrides = _overrides(arguments)
    return [*(argument for argument in arguments if argument not in overrides), *overrides]


def resumed_command_line(arguments: Sequence[str], *, holds_checkpoint: Callable[[Path], bool]) -> list[str]:
    """The command line of the run that `resume=DIR` names, changed by what stands beside it.

    `resume=auto` names `run_dir`, once that holds a checkpoint.

    Args:
        holds_checkpoint: whether there is one in the folder of a run.

    Returns:
        `arguments` as they are where nothing is resumed.
    """
    given = dict(argument.partition("=")[::2] for argument in arguments if "=" in argument)
    folder = given.get("resume")
    if folder == "auto":
        folder = given.get("run_dir", "")
        folder = folder if holds_checkpoint(Path(folder).expanduser()) else ""
    if folder in (None, "null", ""):
        return list(arguments)
    path = Path(folder).expanduser() / "provenance.json"
    if not path.is_file():
        raise ValueError(f"resume={folder}: no provenance.json there; expected the folder of a run")
    saved = json.loads(path.read_text())["arguments"]
    kept = [argument for argument in saved if argument.partition("=")[0] not in given]
    return [*kept, *arguments, *([] if "run_dir" in given else [f"run_dir={folder}"])]
