"""A choice between several settings, of which `type` names the one in use."""

from dataclasses import dataclass
from typing import Any, ClassVar

from trellis.config.config import Config, plain
from trellis.config.fields import fields_of


@dataclass
class OneOfConfig(Config):
    """A config whose field `type` names one of its other fields.

    `type` takes only those names, or null for none.

    Example:
        >>> @dataclass
        ... class ScheduleConfig(OneOfConfig):
        ...     constant: ConstantConfig = ConstantConfig()
        ...     cosine: CosineConfig = CosineConfig()
        >>> ScheduleConfig({"type": "cosine", "cosine": {"steps": 10}}).get()
        CosineConfig(steps=10)
    """

    type: str | None = None

    selector: ClassVar[str | None] = "type"

    def get(self) -> Any:
        """Returns the value of the field that `type` names; None if it names none."""
        return None if self.type is None else vars(self)[self.type]

    def as_dict(self) -> dict[str, Any]:
        """Returns the choice, and what was changed in the fields that are not chosen, so that nothing is lost."""
        kept = {"type": self.type}
        for name, field in fields_of(type(self)).items():
            if name == self.type or (name != "type" and vars(self)[name] != field.default()):
                kept[name] = plain(vars(self)[name])
        return kept
