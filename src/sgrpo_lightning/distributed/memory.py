"""Memory of one GPU during training, on paper: what a causal language model, a strategy and a setting add up to.

Exact for what is held (weights, gradients, optimizer state, cache). Activations are those of decoders of the Llama and
Qwen2 kind with sdpa or flash attention, which keeps no scores. B stands for bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from sgrpo_lightning.distributed.architecture import (
    AUTOCAST,
    BFLOAT16,
    FLOAT32,
    Architecture,
    Arithmetic,
    kv_cache,
    layer_activations,
)

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Sharding:
    """What a strategy keeps: pairs of B for a parameter, (on every rank, shared out over the ranks)."""

    arithmetic: Arithmetic  # with trainer.precision=bf16-mixed
    weights: tuple[int, int]
    gradients: tuple[int, int]
    moments: tuple[int, int]
    gathers: bool = False  # a layer's weights are made whole for the time that it computes
    live: int = 0  # parameters that may stay whole, beyond the layers at work
    buffers: int = 0  # B for communication


ZERO_BUFFERS = 2 * 4 * 200_000_000
"""B of two buckets of Lightning's 2e8 gradients in float32, of which one is sent while the other fills."""

STRATEGIES = {
    "ddp": Sharding(AUTOCAST, (4, 0), (8, 0), (8, 0)),  # gradients, and the buckets in which they are sent
    "fsdp2": Sharding(BFLOAT16, (0, 4), (0, 4), (0, 8), gathers=True),
    "deepspeed_1": Sharding(BFLOAT16, (2, 4), (4, 4), (0, 8), buffers=ZERO_BUFFERS),
    "deepspeed_2": Sharding(BFLOAT16, (2, 4), (0, 8), (0, 8), buffers=ZERO_BUFFERS),
    "deepspeed_3": Sharding(BFLOAT16, (0, 6), (0, 8), (0, 8), gathers=True, live=10**9, buffers=ZERO_BUFFERS),
}
SINGLE = Sharding(AUTOCAST, (4, 0), (4, 0), (8, 0))
"""One device. ddp sends nothing there, and nothing else is worth its while."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What training asks of a GPU beside the model.

    Args:
        ranks: GPUs over which a strategy shares out.
        tokens: of one forward pass of the learner, padding counted.
        trained_tokens: those of them that meet the output layer.
        chunk: rows of logits alive at once; `trained_tokens` keeps all.
        checkpointing: `model.gradient_checkpointing`.
        reference: "device", "cpu", or "none" (beta=0, or adapters that can be switched off).
        reference_tokens: trained tokens of an iteration on one rank, where reference=cpu keeps the states of each.
        trained: parameters that have a gradient; None: all.
        float32: `trainer.precision=32-true`.
    """

    ranks: int
    tokens: int
    trained_tokens: int
    chunk: int
    checkpointing: bool = False
    reference: str = "none"
    reference_tokens: int = 0
    trained: int | None = None
    float32: bool = False

    def __post_init__(self) -> None:
        if self.reference not in ("device", "cpu", "none"):
            raise ValueError(f"reference must be device, cpu or none, got {self.reference!r}")


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """B on one GPU. The first block is held all the time; of learning, stepping and sampling one runs at a time."""

    weights: int
    gradients: int
    moments: int
    reference: int
    buffers: int

    whole_weights: int  # cast or gathered for a pass of the learner
    activations: int
    logits: int
    optimizer: int  # what a step needs for itself
    sampler: int

    @property
    def held(self) -> int:
        return self.weights + self.gradients + self.moments + self.reference + self.buffers

    @property
    def learning(self) -> int:
        return self.whole_weights + self.activations + self.logits

    @property
    def total(self) -> int:
        return self.held + max(self.learning, self.optimizer, self.sampler)

    def parts(self) -> dict[str, int]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def fits(self, gib: float, *, margin: float = 0.1) -> bool:
        """Whether a device of so many GiB holds it, with a share left for the driver, fragments and surprises."""
        return self.total <= gib * GIB * (1 - margin)


def memory_plan(model: Architecture, strategy: str, setting: Setting, *, sampler: int = 0) -> MemoryPlan:
    """The plan of a strategy of conf/strategy.

    Args:
        sampler: B that sampling needs in this process, from `hf_sampler` or `vllm_sampler`.
    """
    sharding = sharding_of(strategy, setting)
    arithmetic = FLOAT32 if setting.float32 else sharding.arithmetic
    trained = model.parameters if setting.trained is None else setting.trained
    whole, activations, logits = learning_peak(model, arithmetic, sharding, setting)
    return MemoryPlan(
        weights=_share(sharding.weights, model.parameters, setting.ranks),
        gradients=_share(sharding.gradients, trained, setting.ranks),
        moments=_share(sharding.moments, trained, setting.ranks),
        reference=_reference(model, arithmetic, setting),
        buffers=sharding.buffers,
        whole_weights=whole,
        activations=activations,
        logits=logits,
        optimizer=_share((4, 0) if sharding.moments[0] else (0, 4), trained, setting.ranks),  # a root of each moment
        sampler=sampler,
    )


def sharding_of(strategy: str, setting: Setting) -> Sharding:
    """`auto` is ddp where there are several ranks, and several ranks are what a strategy is for."""
    name = "ddp" if strategy == "auto" else strategy
    if name not in STRATEGIES:
        raise ValueError(f"strategy must be one of auto, {', '.join(STRATEGIES)}, got {strategy!r}")
    return SINGLE if name == "ddp" and setting.ranks == 1 else STRATEGIES[name]


def _share(bytes_each: tuple[int, int], parameters: int, ranks: int) -> int:
    return bytes_each[0] * parameters + -(-bytes_each[1] * parameters // ranks)


def _reference(model: Architecture, arithmetic: Arithmetic, setting: Setting) -> int:
    """A whole float32 copy on every rank; of one that waits on the CPU, the output layer and the states it reads."""
    states = setting.reference_tokens * model.hidden * AUTOCAST.stream
    waiting = 4 * model.output_layer + states
    return {"device": 4 * model.parameters, "cpu": waiting, "none": 0}[setting.reference]


# ---- a pass of the learner ----


def kept_activations(model: Architecture, arithmetic: Arithmetic, setting: Setting) -> int:
    """B of all layers and the last norm when the forward pass ends; with checkpointing, the input of each layer."""
    layer = model.hidden * arithmetic.stream if setting.checkpointing else layer_activations(model, arithmetic)
    return setting.tokens * (model.layers * layer + last_norm(model, arithmetic))


def last_norm(model: Architecture, arithmetic: Arithmetic) -> int:
    return model.hidden * (4 + arithmetic.stream)


def learning_peak(
    model: Architecture, arithmetic: Arithmetic, sharding: Sharding, setting: Setting
) -> tuple[int, int, int]:
    """(whole weights, activations, logits) at whichever moment of forward and backward they add up to most."""
    kept = kept_activations(model, arithmetic, setting)
    gathered = _gathered(model, sharding) if sharding.gathers else 0
    casts = 2 * model.layer_matrices if arithmetic.casts else 0
    in_backward = casts if setting.checkpointing else casts * model.layers
    waiting = (4 if arithmetic.casts else arithmetic.product) * model.output_layer if model.tied else 0
    recomputed = layer_activations(model, arithmetic) if setting.checkpointing else 0
    kept_by_layers = kept - setting.tokens * last_norm(model, arithmetic)
    layer = setting.tokens * (recomputed + 2 * model.intermediate * arithmetic.product + 2 * model.hidden * 4)
    forward, backward = _logits(model, arithmetic, setting)
    head = arithmetic.product * model.output_layer if arithmetic.casts else 0
    moments = (
        (gathered + casts * model.layers + head, kept, forward),  # the loss
        (gathered + in_backward + head, kept, backward),  # its gradient
        (
            gathered + in_backward,
            kept_by_layers + layer,
            waiting,
        ),  # the last layer's
    )
    return max(moments, key=sum)


def _logits(model: Architecture, arithmetic: Arithmetic, setting: Setting) -> tuple[int, int]:
    """B of the loss, forward and backward: float32 logits, softmax and entropy, the gradient of the output layer."""
    rows = min(setting.chunk, setting.trained_tokens)
    chunks = -(-setting.trained_tokens // max(rows, 1))
    states = setting.trained_tokens * model.hidden * arithmetic.stream
    arrays = 4 * rows * model.vocabulary
    frozen = 0 if setting.reference == "none" else arrays  # the reference's, for the full KL
    gradient = arithmetic.product * model.output_layer
    adding = 3 * gradient if chunks > 1 else gradient
    back = 3 * arrays + 2 * frozen + (gradient if chunks > 1 else 0)
    states *= 2 if frozen else 1
    return 4 * arrays + 3 * frozen + states, max(back, adding) + states


def _gathered(model: Architecture, sharding: Sharding) -> int:
    """B of the weights that are whole at one time: the outermost module's, a layer at work, one on its way (twice).

    And the gradients of a layer, whole in bf16 and, to be added up over the ranks, in float32.
    """
    if sharding.live:
        return 2 * min(model.parameters, sharding.live)
    outermost = model.output_layer * (1 if model.tied else 2)
    return 2 * outermost + (2 * 3 + 2 + 4) * model.layer_matrices


# ---- sampling ----


def hf_sampler(
    model: Architecture, strategy: str, *, rows: int, tokens: int, vocabulary_arrays: int = 4, float32: bool = False
) -> int:
    """B of `sampler=hf`: the cache of `rows` rows of `tokens`, one layer of it twice while it grows, and logits.

    Under autocast the cache is float32, for rotary embeddings multiply keys by float32 numbers, and weights have a
    copy in bf16. Sharded weights are whole while the policy samples.
    """
    setting = Setting(ranks=2, tokens=0, trained_tokens=0, chunk=0)
    sharding = sharding_of(strategy, setting)
    arithmetic = FLOAT32 if float32 else sharding.arithmetic
    cache = kv_cache(model, rows * tokens, bytes_each=arithmetic.stream)
    whole = 2 * model.parameters if sharding.gathers or arithmetic.casts else 0
    return cache + cache // model.layers + vocabulary_arrays * 4 * rows * model.vocabulary + whole


def vllm_sampler(gib: float, *, utilization: float) -> int:
    """B of `sampler=vllm`, which takes its share of the device whatever the model; asleep it gives all of it back."""
    return round(gib * GIB * utilization)


def vllm_rows(model: Architecture, gib: float, *, utilization: float, tokens: int, workspace: float = 2.0) -> int:
    """Rows of so many tokens that its cache holds at once; further ones wait. Below 1 it does not start.

    Args:
        workspace: GiB of activations and CUDA graphs.
    """
    left = vllm_sampler(gib, utilization=utilization) - 2 * model.parameters - round(workspace * GIB)
    return max(0, left // kv_cache(model, tokens))
