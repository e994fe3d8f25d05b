"""Typed, nested settings that refuse what they do not know."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.config.config import Config as Config, merge as merge
    from trellis.config.one_of import OneOfConfig as OneOfConfig
    from trellis.config.given import (
        Origin as Origin,
        DEFAULT as DEFAULT,
        Given as Given,
        given_at as given_at,
        Text as Text,
    )
    from trellis.config.origins import origin_of as origin_of, without_effect as without_effect, stamp as stamp
    from trellis.config.problems import (
        Problem as Problem,
        Edit as Edit,
        raise_if_any as raise_if_any,
        for_shell as for_shell,
    )
    from trellis.config.restrictions import violations as violations
    from trellis.config.scalars import plain_value as plain_value
    from trellis.config.yaml_text import dump as dump, read_file as read_file, read_text as read_text
else:
    __getattr__, __dir__, __all__ = door(__name__)
