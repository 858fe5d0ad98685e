"""RMSNorm with the residual addition that precedes it in every layer."""

from torch import Tensor

from pageloom_kernels.dispatch import operators


def rms_norm(x: Tensor, weight: Tensor, *, eps: float, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Normalize `x + residual` and return it with the sum, which is the next residual.

    `x` and `residual` are [tokens, hidden], `weight` is [hidden]. The sum is rounded to the model's dtype, statistics
    are fp32, and the normalized value is rounded before the weight scales it, as transformers' LlamaRMSNorm does.
    Without a residual the second result is `x` itself.

    Raises:
        ValueError: `x` is not a matrix of contiguous rows, or `weight` or `residual` does not fit it.
    """
    if x.dim() != 2 or x.stride(1) != 1:
        raise ValueError(f"x must be [tokens, hidden] with contiguous rows, got {tuple(x.shape)}, strides {x.stride()}")
    if weight.shape != x.shape[1:]:
        raise ValueError(f"weight must have shape {tuple(x.shape[1:])} to scale x, got {tuple(weight.shape)}")
    if residual is not None and (residual.shape != x.shape or residual.stride(1) != 1):
        raise ValueError(
            f"residual must have the shape of x, {tuple(x.shape)}, and contiguous rows, "
            f"got {tuple(residual.shape)}, strides {residual.stride()}"
        )
    return operators(x.device).rms_norm(x, weight, eps=eps, residual=residual)
