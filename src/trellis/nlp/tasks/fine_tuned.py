"""A model of Hugging Face's that answers text as it is: the config of a run that has never been trained."""

from collections.abc import Callable, Mapping
from pathlib import Path

from trellis.bridges import HuggingFaceSettings, read_hugging_face_settings, read_sentence_embedding
from trellis.errors import ArgumentError
from trellis.experiments import ExperimentConfig
from trellis.nlp.data import (
    BertPretrainTextDataConfig,
    MultiLabelDataConfig,
    QADataConfig,
    SentencePredictionTextDataConfig,
    TaggingDataConfig,
)
from trellis.nlp.models import EncoderConfig, PretrainerConfig
from trellis.nlp.tasks.configs import (
    DualEncoderConfig,
    MaskedLMConfig,
    MultiLabelConfig,
    MultiLabelModelConfig,
    QuestionAnsweringConfig,
    QuestionAnsweringModelConfig,
    SentencePredictionConfig,
    SentencePredictionModelConfig,
    TaggingConfig,
)
from trellis.tasks import TaskConfig

_MOST_TOKENS = 512


def read_hugging_face_experiment(directory: str | Path) -> ExperimentConfig:
    """The config with which the model in a directory of Hugging Face's is asked.

    It reads as many tokens as it has positions for, 512 at most; questions get windows of 384.

    Example:
        predictor = load_predictor("weights/sst2", params=read_hugging_face_experiment("weights/sst2"))
    """
    if read_sentence_embedding(directory) is not None:
        # What it says of pooling and lengths, the task reads itself.
        return ExperimentConfig(task=DualEncoderConfig(hub_module_url=str(directory)))
    settings = read_hugging_face_settings(directory)
    build = next((build for head, build in _TASKS.items() if head in settings.heads), None)
    if build is None or not settings.classifies_as_ours:
        kind = f"problem_type {settings.problem_type}" if build else "no head that answers text"
        raise ArgumentError(
            f"`{directory}` holds a {settings.architecture or 'model'} with {kind}. Those for sequence classification "
            f"(classes, or a number), tokens, question answering and masked words can be asked, and folders of "
            f"sentence-transformers; others are fine-tuned first: "
            f"trellis train --params_override=task.hub_module_url={directory}"
        )
    return ExperimentConfig(task=build(str(directory), settings))


def _sentences(directory: str, settings: HuggingFaceSettings) -> TaskConfig:
    data = SentencePredictionTextDataConfig(seq_length=_n_tokens(settings))
    # The pooler of such a model is the encoder's own, if it has one, or else the head's.
    model = SentencePredictionModelConfig(
        num_classes=settings.n_classes, use_encoder_pooler=not settings.head_has_pooler
    )
    return SentencePredictionConfig(
        hub_module_url=directory,
        model=model,
        metric_type="pearson_spearman_corr" if settings.n_classes == 1 else "accuracy",
        train_data=data,
        validation_data=data,
    )


def _questions(directory: str, settings: HuggingFaceSettings) -> TaskConfig:
    length = min(384, _n_tokens(settings))
    data = QADataConfig(seq_length=length, doc_stride=length // 3, query_length=min(64, length // 2))
    return QuestionAnsweringConfig(
        hub_module_url=directory, model=QuestionAnsweringModelConfig(), train_data=data, validation_data=data
    )


def _several_labels(directory: str, settings: HuggingFaceSettings) -> TaskConfig:
    data = MultiLabelDataConfig(seq_length=_n_tokens(settings))
    # The pooler of such a model is the encoder's own, if it has one.
    model = MultiLabelModelConfig(use_encoder_pooler=True)
    return MultiLabelConfig(
        hub_module_url=directory, model=model, class_names=_names(settings), train_data=data, validation_data=data
    )


def _names(settings: HuggingFaceSettings) -> list[str]:
    return list(settings.label_names) or [f"LABEL_{number}" for number in range(settings.n_classes)]


def _tags(directory: str, settings: HuggingFaceSettings) -> TaskConfig:
    data = TaggingDataConfig(seq_length=_n_tokens(settings))
    return TaggingConfig(hub_module_url=directory, class_names=_names(settings), train_data=data, validation_data=data)


def _blanks(directory: str, settings: HuggingFaceSettings) -> TaskConfig:
    data = BertPretrainTextDataConfig(seq_length=_n_tokens(settings), use_next_sentence_label=False)
    return MaskedLMConfig(hub_module_url=directory, model=PretrainerConfig(), train_data=data, validation_data=data)


_TASKS: Mapping[str, Callable[[str, HuggingFaceSettings], TaskConfig]] = {
    "sentence_prediction": _sentences,
    "multi_label": _several_labels,
    "tagging": _tags,
    "span_labeling": _questions,
    "masked_lm": _blanks,
}
"""By the head that answers."""


def _n_tokens(settings: HuggingFaceSettings) -> int:
    return min(_MOST_TOKENS, EncoderConfig(settings.encoder).n_positions)
