"""Every head that conf/objective names for the llm domain, as Hydra builds it."""

from functools import partial
from pathlib import Path

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

OBJECTIVES = Path(__file__).parents[2] / "conf" / "objective"


def objective_node(path: Path) -> DictConfig:
    config = OmegaConf.load(path)
    return config.get("objective", config)


def build_heads() -> dict[str, partial]:
    nodes = {path.stem: objective_node(path) for path in sorted(OBJECTIVES.glob("*.yaml"))}
    served = {name: node for name, node in nodes.items() if "llm" in node.pop("domains", ["llm"])}
    return {name: instantiate(node) for name, node in served.items()}


HEADS = build_heads()
NONNEGATIVE = {"maxrl"}  # heads that refuse negative rewards


def declaring(declared: str) -> list[str]:
    return [name for name, head in HEADS.items() if declared in getattr(head.func, "declares", ())]


def head_for(name: str, size: int) -> partial:
    """The head of that name with its k, if it has one, cut to the group size."""
    head = HEADS[name]
    k = head.keywords.get("k")
    return partial(head.func, **{**head.keywords, "k": min(k, size)}) if k else head
