"""What models answer to text that somebody typed."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.nlp.answers.predictor import (
        load_predictor as load_predictor,
        open_served_text as open_served_text,
        Predictor as Predictor,
        ServedText as ServedText,
    )
    from trellis.nlp.answers.asked_file import Asked as Asked, AskedFile as AskedFile
    from trellis.nlp.answers.answerers import (
        Prediction as Prediction,
        Answerer as Answerer,
        BlankAnswerer as BlankAnswerer,
        SentenceAnswerer as SentenceAnswerer,
        EmbeddingAnswerer as EmbeddingAnswerer,
        QuestionAnswerer as QuestionAnswerer,
    )
    from trellis.nlp.answers.label_answers import LabelsAnswerer as LabelsAnswerer
    from trellis.nlp.answers.tag_answers import TagAnswerer as TagAnswerer
    from trellis.nlp.answers.tag_spans import (
        Span as Span,
        marks_spans as marks_spans,
        spans_of as spans_of,
    )
    from trellis.nlp.answers.generator import (
        GenerationOptions as GenerationOptions,
        Generator as Generator,
        TextWriter as TextWriter,
        WritingTask as WritingTask,
        load_writer as load_writer,
        shown_text as shown_text,
    )
    from trellis.nlp.answers.question_answers import (
        AnswerOptions as AnswerOptions,
        Answer as Answer,
        answer_questions as answer_questions,
    )
    from trellis.nlp.answers.served_text import served_metadata as served_metadata
else:
    __getattr__, __dir__, __all__ = door(__name__)
