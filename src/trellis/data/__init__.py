"""Files to examples to batches."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.data.configs import DataConfig as DataConfig

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "DataConfig": "configs",
    },
)
