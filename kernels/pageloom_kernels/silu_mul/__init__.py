"""The gated activation of the feed-forward network."""

from torch import Tensor

from pageloom_kernels.dispatch import operators


def silu_mul(gate_up: Tensor) -> Tensor:
    """Return `silu(gate) * up` for `gate_up` [tokens, 2 * intermediate], whose first half is the gate.

    The activation is computed in fp32 and rounded to the model's dtype before the product, as in transformers.

    Raises:
        ValueError: the last dimension is odd.
    """
    if gate_up.shape[-1] % 2:
        raise ValueError(f"gate_up must hold two halves of equal size in its last dimension, got {gate_up.shape[-1]}")
    return operators(gate_up.device).silu_mul(gate_up)
