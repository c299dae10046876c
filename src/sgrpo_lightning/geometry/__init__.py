"""What an advantage head optimises: weights, objectives, limits, tilts and integrability.

Everything is computed in float64 with NumPy and SciPy and carries no gradient. Arguments are scalars, arrays
or tensors that broadcast; a tensor anywhere gives a float64 tensor, an array gives an array, scalars a float.
"""

from sgrpo_lightning.geometry.closed_forms import (
    grpo_mean_field_weight,
    maxrl_weight,
    ml_weight,
    reinforce_weight,
    softmax_grpo_mean_field_weight,
    softmax_grpo_objective,
    softmax_grpo_weight,
)
from sgrpo_lightning.geometry.integrability import circulation, curl, one_form, one_form_jacobian, work_along
from sgrpo_lightning.geometry.population import (
    binary_advantages,
    mean_absolute_advantage,
    population_objective,
    population_weight,
    success_gaps,
)
from sgrpo_lightning.geometry.properties import breaches, head_properties
from sgrpo_lightning.geometry.tilt import (
    adaptive_tau,
    effective_sample_size,
    log_mgf,
    noisy_weight_bounds,
    tilted_weights,
)

__all__ = [
    "adaptive_tau",
    "binary_advantages",
    "breaches",
    "circulation",
    "curl",
    "effective_sample_size",
    "grpo_mean_field_weight",
    "head_properties",
    "log_mgf",
    "maxrl_weight",
    "mean_absolute_advantage",
    "ml_weight",
    "noisy_weight_bounds",
    "one_form",
    "one_form_jacobian",
    "population_objective",
    "population_weight",
    "reinforce_weight",
    "softmax_grpo_mean_field_weight",
    "softmax_grpo_objective",
    "softmax_grpo_weight",
    "success_gaps",
    "tilted_weights",
    "work_along",
]
