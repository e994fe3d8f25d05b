"""What tasks have in common whose classes are known by their names."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

from trellis.aliases import Variables
from trellis.config import Origin, Problem, merge, raise_if_any, setting_at
from trellis.data import DataConfig
from trellis.nlp.data import TextSettings
from trellis.nlp.tasks.encoder_task import EncoderTask
from trellis.nlp.tasks.pretrained import read_fine_tuned
from trellis.runtime import print_line
from trellis.tasks import BoundModel, traceable


class NamedClassesTask(EncoderTask):
    """A task with `class_names` in its config.

    If these are null, they are those of the weights, if the weights have such a head that knows all names of the
    training data, or else those of the training data in alphabetical order. They are told, and kept with the run.
    """

    head: ClassVar[str]
    """The name of the model's head."""
    noun: ClassVar[str]
    """What the names are of, in the plural."""

    @abstractmethod
    def count_names(self, params: DataConfig) -> Mapping[str, int]:
        """How often each name is in the data of a config, in alphabetical order."""

    def completed(self, params: Any) -> Any:
        """The config with what it leaves to the weights, to the text and to the names."""
        params = super().completed(params)
        names, origin = (None, None) if params.class_names is not None else self._find_names(params)
        if names is None or origin is None:
            return params
        config = params.replace()
        raise_if_any(merge(config, setting_at("class_names", list(names), origin)))
        return config

    def _find_names(self, params: Any) -> tuple[list[str] | None, Origin | None]:
        source = self.text_source
        if source is not None and source.owner == "run" and source.settings.label_values is not None:
            return list(source.settings.label_values), Origin("the run")
        weights = read_fine_tuned(self.starts_from)
        theirs = list(weights.label_names) if weights is not None and weights.heads == (self.head,) else []
        if params.train_data.input_path:
            # Names are counted in data that can be read.
            raise_if_any(list(self.text_problems(params)))
            self._counts = self.count_names(params.train_data)
            if not set(self._counts) <= set(theirs):
                return list(self._counts), Origin(f"the {self.noun} of the training data")
        return (theirs, Origin(self.starts_from)) if theirs else (None, None)

    @cached_property
    def _counts(self) -> Mapping[str, int]:
        """How often each name is in the training data; nothing if that was not looked at."""
        return {}

    def problems(self) -> Iterator[Problem]:
        """Yields the problems with the config."""
        yield from super().problems()
        names = self.class_names
        if not names:
            is_null = self.task_config.class_names is None
            reason = f"is null, and there is no training data to find the {self.noun} in" if is_null else "is empty"
            advice = "Name them in the order of their numbers: --set task.class_names='[first, second]'"
            yield self.problem("class_names", f"{reason}.", advice)
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            message = f"has {repeated!r} more than once."
            yield self.problem("class_names", message, "Name each once, in their order.")

    @property
    def class_names(self) -> list[str]:
        """The names, in the order of their numbers."""
        return list(self.task_config.class_names or ())

    @property
    def label_fields(self) -> Sequence[str]:
        """What a batch calls the numbers of the names."""
        return ("label_ids",)

    @property
    def label_names(self) -> Sequence[str]:
        """The names."""
        return self.class_names

    @property
    def text(self) -> TextSettings | None:
        """All that turns text into ids, and the names; None if it is not known, because the data came as ids."""
        text = super().text
        return None if text is None else replace(text, label_values=tuple(self.class_names))

    def weights_settings(self) -> Mapping[str, Any]:
        """The names."""
        return {"label_names": self.class_names}

    def plan_notes(self) -> Iterator[str]:
        """How text is cut, and which names there are."""
        yield from super().plan_notes()
        yield self._note()

    def _note(self) -> str:
        shown = (f"{name} ({self._counts[name]:,})" if self._counts.get(name) else name for name in self.class_names)
        return f"{self.noun}: {', '.join(shown)}"

    @traceable
    def initialize(self, model: BoundModel) -> Variables:
        """The pretrained variables to start from at step 0; the names that were found are told."""
        if self._counts:
            print_line(self._note())
        return super().initialize(model)
