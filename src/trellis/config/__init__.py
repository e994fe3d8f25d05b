"""Typed, nested settings that refuse what they do not know."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.config.config import Config as Config, OneOfConfig as OneOfConfig, bind as bind, merge as merge
    from trellis.config.settings import (
        Origin as Origin,
        DEFAULT as DEFAULT,
        Setting as Setting,
        setting_at as setting_at,
        Text as Text,
    )
    from trellis.config.fields import (
        branches as branches,
        origin_of as origin_of,
        stamp as stamp,
        registered_name as registered_name,
        without_effect as without_effect,
    )
    from trellis.config.problems import (
        Problem as Problem,
        Edit as Edit,
        raise_if_any as raise_if_any,
        for_shell as for_shell,
    )
    from trellis.config.restrictions import violations as violations
    from trellis.config.kinds import plain_value as plain_value
    from trellis.config.yaml_text import dump as dump, read_file as read_file, read_text as read_text
else:
    __getattr__, __dir__, __all__ = door(__name__)
