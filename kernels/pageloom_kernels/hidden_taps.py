"""Where a model's hidden states go that somebody wants from its middle."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HiddenTaps:
    """Receives what goes into some of the layers: `states` [tokens, len(layers), hidden] of the model's dtype."""

    layers: tuple[int, ...]
    states: Tensor
