"""From a loss to an update."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.optimizers.gradients import compute_gradients as compute_gradients

__getattr__, __dir__, __all__ = door(__name__, {"compute_gradients": "gradients"})
