"""Typed, nested settings that refuse what they do not know."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.config.config import Config as Config
    from trellis.config.config import merge as merge
    from trellis.config.given import DEFAULT as DEFAULT
    from trellis.config.given import Given as Given
    from trellis.config.given import Origin as Origin
    from trellis.config.given import Text as Text
    from trellis.config.given import given_at as given_at
    from trellis.config.one_of import OneOfConfig as OneOfConfig
    from trellis.config.origins import origin_of as origin_of
    from trellis.config.origins import stamp as stamp
    from trellis.config.origins import without_effect as without_effect
    from trellis.config.problems import Edit as Edit
    from trellis.config.problems import Problem as Problem
    from trellis.config.problems import for_shell as for_shell
    from trellis.config.problems import raise_if_any as raise_if_any
    from trellis.config.restrictions import violations as violations
    from trellis.config.scalars import plain_value as plain_value
    from trellis.config.yaml_text import dump as dump
    from trellis.config.yaml_text import read_file as read_file
    from trellis.config.yaml_text import read_text as read_text

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "Config": "config",
        "OneOfConfig": "one_of",
        "Origin": "given",
        "DEFAULT": "given",
        "origin_of": "origins",
        "without_effect": "origins",
        "stamp": "origins",
        "Given": "given",
        "given_at": "given",
        "Text": "given",
        "Problem": "problems",
        "Edit": "problems",
        "raise_if_any": "problems",
        "for_shell": "problems",
        "violations": "restrictions",
        "merge": "config",
        "plain_value": "scalars",
        "dump": "yaml_text",
        "read_file": "yaml_text",
        "read_text": "yaml_text",
    },
)
