"""How a model answers text, as a run knows it and as a served model tells it."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from trellis.aliases import JSON
from trellis.errors import ServedModelError
from trellis.nlp.data import Windows
from trellis.nlp.tasks.blank_answerer import BlankAnswerer
from trellis.nlp.tasks.predictions import Answerer
from trellis.nlp.tasks.question_answerer import QuestionAnswerer
from trellis.nlp.tasks.question_answers import AnswerOptions
from trellis.nlp.tasks.sentence_answerer import SentenceAnswerer

TEXT = "text"
"""Where a served model tells how it answers text, in the metadata of its manifest."""
_ANSWERERS: Mapping[str, Callable[[Mapping[str, Any]], Answerer]] = {
    BlankAnswerer.kind: lambda fields: BlankAnswerer(**fields),
    SentenceAnswerer.kind: lambda fields: SentenceAnswerer(**fields),
    QuestionAnswerer.kind: lambda fields: QuestionAnswerer(
        Windows(**fields["windows"]), AnswerOptions(**fields["options"])
    ),
}


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """All that text is answered with beside the model and the vocabulary."""

    answerer: Answerer
    tokenization: str
    lower_case: bool
    vocab_size: int
    """How many tokens the model knows."""

    def as_dict(self) -> dict[str, JSON]:
        """The settings, as JSON has them."""
        return {**asdict(self), "answers": self.answerer.kind}


def read_text_settings(told: Mapping[str, Any], *, place: str) -> TextSettings:
    """The settings that a served model tells.

    Args:
        place: Where it lies, for errors.
    """
    try:
        answerer = _ANSWERERS[told["answers"]](told["answerer"])
        names = ("tokenization", "lower_case", "vocab_size")
        return TextSettings(answerer=answerer, **{name: told[name] for name in names})
    except (KeyError, TypeError) as error:
        raise ServedModelError(
            f"`{place}` tells in a way that is not known here how it answers text ({error}). Install the Trellis that "
            f"wrote it, or export the model again."
        ) from error
