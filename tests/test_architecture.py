"""Who may import whom, and how large a file may grow. Read from the source, so a rule holds for new files too."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "sgrpo_lightning"
FILES = sorted([*PACKAGE.rglob("*.py"), *(ROOT / "datamodules").rglob("*.py")])
COMMANDS = sorted(ROOT.glob("*.py"))

LIGHT = {"axes", "heads", "geometry", "losses", "rewards", "metrics"}
MIDDLE = LIGHT | {"samplers", "tasks", "evaluation", "report", "distributed", "provenance"}
# What each part may import of the others; the parts of LIGHT import nothing of one another.
MAY_IMPORT = {
    **{key: set() for key in LIGHT},
    "samplers": LIGHT,
    "tasks": LIGHT | {"cache"},
    "evaluation": MIDDLE,
    "report": LIGHT,
    "distributed": {"axes"},
    "provenance": set(),
    "cache": set(),
    "modules": MIDDLE,
    "callbacks": MIDDLE | {"modules"},
    "doctor": MIDDLE | {"modules", "callbacks"},
    "overrides": set(),
    "run": MIDDLE | {"modules", "callbacks", "doctor", "overrides"},
    "datamodules": MIDDLE | {"modules", "cache"},
}
FOR_LIGHT = {"torch", "numpy", "scipy", "jaxtyping", *sys.stdlib_module_names}
FOR_GRADERS = {"latex2sympy2_extended", "math_verify", "pebble", "rapidfuzz", "regex", "sympy"}
KNOW_HYDRA = {"run", "overrides"}
HEAVY = {"vllm", "deepspeed", "liger_kernel", "trl", "peft", "wandb", "datasets"}


def part(path):
    """The subpackage, or the module of the top level."""
    if path.is_relative_to(PACKAGE):
        return path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "datamodules"


def imports(path):
    """(dotted name, depth of functions and of TYPE_CHECKING around it) of every import; relative ones made absolute."""
    found = []

    def visit(node, inside):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                found.extend((alias.name, inside) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                package = list(path.relative_to(ROOT / "src").parts[: -child.level]) if child.level else []
                found.append((".".join([*package, *([child.module] if child.module else [])]), inside))
            for_types = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
            visit(child, inside + (for_types or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)))

    visit(ast.parse(path.read_text()), 0)
    return found


def own_parts(path):
    """The other parts of this project that a file imports."""
    for name, _ in imports(path):
        pieces = name.split(".")
        if pieces[0] == "sgrpo_lightning" and len(pieces) > 1:
            yield pieces[1]
        elif pieces[0] == "datamodules":
            yield "datamodules"


def names(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES, ids=names)
def test_dependencies_point_downwards(path):
    own = part(path)
    if own == "__init__":
        assert not list(own_parts(path))
        return
    assert own in MAY_IMPORT, f"{own} is new: say in MAY_IMPORT what it may import"
    assert set(own_parts(path)) - {own} <= MAY_IMPORT[own]


@pytest.mark.parametrize("path", [path for path in FILES if part(path) in LIGHT], ids=names)
def test_the_mathematics_needs_torch_alone(path):
    roots = {name.split(".")[0] for name, _ in imports(path)} - {"sgrpo_lightning"}
    assert roots <= (FOR_LIGHT | FOR_GRADERS if part(path) == "rewards" else FOR_LIGHT)


@pytest.mark.parametrize("path", FILES, ids=names)
def test_hydra_stays_in_its_place(path):
    roots = {name.split(".")[0] for name, _ in imports(path)}
    assert part(path) in KNOW_HYDRA or not roots & {"hydra", "omegaconf"}


@pytest.mark.parametrize("path", FILES, ids=names)
def test_heavy_packages_are_imported_where_they_are_used(path):
    """Inside functions, so that a machine without them runs everything else."""
    assert not {name.split(".")[0] for name, inside in imports(path) if not inside} & HEAVY


def test_what_an_import_pulls_in():
    """As seen by the interpreter: the mathematics without transformers, a run without the heavy packages."""
    code = """
import sys
import sgrpo_lightning.axes, sgrpo_lightning.heads, sgrpo_lightning.geometry
import sgrpo_lightning.losses, sgrpo_lightning.rewards, sgrpo_lightning.metrics
print(*{name.partition(".")[0] for name in sys.modules})
import sgrpo_lightning.run, sgrpo_lightning.callbacks, sgrpo_lightning.samplers.hf
from sgrpo_lightning.modules import ClassificationModule, PolicyModule, SupervisedModule, resnet
import datamodules.prompts, datamodules.demonstrations, datamodules.images, datamodules.glyphs, datamodules.imagenet
print(*{name.partition(".")[0] for name in sys.modules})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    light, all_of_it = (set(line.split()) for line in done.stdout.splitlines())
    assert not light & (HEAVY | {"transformers", "tokenizers", "lightning", "hydra", "omegaconf", "matplotlib"})
    assert not all_of_it & HEAVY


def file_of(name):
    """Of one of our modules or packages; None for any other name."""
    folder = {"sgrpo_lightning": ROOT / "src", "datamodules": ROOT}.get(name.split(".")[0])
    stem = folder and folder.joinpath(*name.split("."))
    candidates = [stem.with_suffix(".py"), stem / "__init__.py"] if stem else []
    return next((path for path in candidates if path.is_file()), None)


def packages_behind(*modules):
    """The packages of others that our files import on the way to these modules, as far as we ourselves import them."""
    seen, stack, found = set(), [*modules], set()
    while stack:
        name = stack.pop()
        path = file_of(name)
        if path is None:
            found.add(name.split(".")[0])
        elif name not in seen:
            seen.add(name)
            parents = [name.rpartition(".")[0]] if "." in name else []
            stack += [*parents, *(other for other, inside in imports(path) if not inside)]
    return found


def test_each_domain_runs_without_the_packages_of_the_other():
    """Lightning imports both by itself where it finds them, so this is read from the source."""
    shared = ("sgrpo_lightning.run", "sgrpo_lightning.callbacks")
    images = ("classification", "label_loss", "plan", "schedules", "vision")
    images = (*(f"sgrpo_lightning.modules.{name}" for name in images), "datamodules.images", "datamodules.imagenet")
    language = ("sgrpo_lightning.modules.policy", "sgrpo_lightning.modules.loading", "datamodules.prompts")
    assert "transformers" in packages_behind(*shared, *language)
    assert not {"transformers", "tokenizers"} & packages_behind(*shared, *images, "datamodules.glyphs")
    assert "torchvision" not in packages_behind(*shared, *language)


@pytest.mark.parametrize("path", FILES, ids=names)
def test_files_and_functions_stay_short(path):
    text = path.read_text()
    is_head = part(path) == "heads" and path.stem != "contract"
    assert len(text.splitlines()) <= (60 if is_head else 300)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 60, node.name


@pytest.mark.parametrize("path", COMMANDS, ids=names)
def test_commands_are_a_few_lines(path):
    assert len(path.read_text().splitlines()) <= 20
    assert {name.split(".")[0] for name, _ in imports(path)} <= {"sgrpo_lightning"}
