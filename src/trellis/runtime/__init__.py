"""Where a run takes place: processes, mesh, precision, the root key."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.runtime.configs import MeshConfig as MeshConfig
    from trellis.runtime.configs import RuntimeConfig as RuntimeConfig

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "RuntimeConfig": "configs",
        "MeshConfig": "configs",
    },
)
