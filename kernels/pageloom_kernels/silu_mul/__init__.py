"""The gated activation of the feed-forward network."""

from torch import Tensor

from pageloom_kernels.dispatch import operators


def silu_mul(gate_up: Tensor) -> Tensor:
    """Return `silu(gate) * up` for `gate_up` [tokens, 2 * intermediate], whose first half is the gate.

    The activation is computed in fp32 and rounded to the model's dtype before the product, as in transformers.

    Raises:
        ValueError: `gate_up` is not a matrix of contiguous rows of even length.
    """
    if gate_up.dim() != 2 or gate_up.shape[1] % 2 or gate_up.stride(1) != 1:
        raise ValueError(
            "gate_up must be [tokens, 2 * intermediate] with contiguous rows, "
            f"got {tuple(gate_up.shape)}, strides {gate_up.stride()}"
        )
    return operators(gate_up.device).silu_mul(gate_up)
