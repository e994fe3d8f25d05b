"""What leaves the library: models that are served without the code that made them."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.serving.export import (
        export_model as export_model,
        Signature as Signature,
        ServingFunction as ServingFunction,
        PLATFORMS as PLATFORMS,
    )
    from trellis.serving.manifest import (
        Format as Format,
        FORMATS as FORMATS,
        check_format as check_format,
        find_served_model as find_served_model,
    )
    from trellis.serving.load import (
        load_model as load_model,
        LoadedModel as LoadedModel,
        LoadedSignature as LoadedSignature,
    )
else:
    __getattr__, __dir__, __all__ = door(__name__)
