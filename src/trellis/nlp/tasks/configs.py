"""Settings of the tasks on text."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from trellis.config import Config
from trellis.data import DataConfig
from trellis.nlp.data import (
    BertPretrainDataConfig,
    BertPretrainTextDataConfig,
    DualEncoderDataConfig,
    MultiLabelDataConfig,
    QADataConfig,
    SentencePredictionDataConfig,
    SentencePredictionTextDataConfig,
    TaggingDataConfig,
    TokenBlocksDataConfig,
)
from trellis.nlp.models import ClsHeadConfig, DecoderConfig, EncoderConfig, PretrainerConfig
from trellis.tasks import TaskConfig

_NEXT_SENTENCE = ClsHeadConfig(inner_dim=768, num_classes=2, dropout_rate=0.1, name="next_sentence")
_LOCAL_TEXT = BertPretrainTextDataConfig(
    global_batch_size=32, seq_length=32, max_predictions_per_seq=5, use_next_sentence_label=False
)
_LOCAL_BLOCKS = TokenBlocksDataConfig(global_batch_size=16, seq_length=128, documents="blank_lines")


@dataclass
class EncoderTaskConfig(TaskConfig):
    """What all tasks on an encoder have."""

    hub_module_url: str = ""
    """A local directory (Hugging Face's, or of a run) with both the encoder's settings and its weights; heads that fit
    are taken too."""

    @property
    def starts_from(self) -> str:
        """Where parameters are taken from at step 0; empty if they are all new."""
        return self.hub_module_url or self.init_checkpoint


@dataclass
class MaskedLMConfig(EncoderTaskConfig):
    """Which words were masked, and whether one sentence follows the other."""

    model: PretrainerConfig = PretrainerConfig(cls_heads=[_NEXT_SENTENCE])
    scale_loss: bool = False
    train_data: DataConfig = BertPretrainDataConfig()
    validation_data: DataConfig = BertPretrainDataConfig(is_training=False)

    no_effect: ClassVar[Mapping[str, str]] = {
        **TaskConfig.no_effect,
        "scale_loss": "the loss is a mean over the global batch on any devices",
    }
    task_module: ClassVar[str] = "trellis.nlp.tasks.masked_lm"


@dataclass
class LocalMaskedLMConfig(MaskedLMConfig):
    """Which words were masked in the documentation of Python's own standard library; its data needs no files."""

    model: PretrainerConfig = PretrainerConfig()
    train_data: DataConfig = _LOCAL_TEXT
    validation_data: DataConfig = _LOCAL_TEXT.replace(is_training=False, drop_remainder=False)


@dataclass
class LanguageModelConfig(TaskConfig):
    """Which token comes next, given all that came before it."""

    model: DecoderConfig = DecoderConfig()
    train_data: DataConfig = TokenBlocksDataConfig()
    validation_data: DataConfig = TokenBlocksDataConfig(is_training=False, drop_remainder=False)
    sample_prompts: list[str] = field(default_factory=lambda: ["\n"])
    """What the model goes on with at every evaluation, to show what it has learned."""
    n_sample_tokens: int = 100
    """How many tokens it adds; 0 shows none."""
    sample_temperature: float = 0.8
    """0 takes the most probable tokens, 1 draws as the model says."""

    task_module: ClassVar[str] = "trellis.nlp.tasks.language_model"


@dataclass
class LocalLanguageModelConfig(LanguageModelConfig):
    """Which byte comes next in the documentation of Python's own standard library; its data needs no files."""

    train_data: DataConfig = _LOCAL_BLOCKS
    validation_data: DataConfig = _LOCAL_BLOCKS.replace(is_training=False, drop_remainder=False)


@dataclass
class SentencePredictionModelConfig(Config):
    """An encoder with a head that classifies, or rates, a sentence or a pair of them."""

    num_classes: int = 0
    """With 0 those of the training data are counted; 1 is for regression: the label is a number."""
    use_encoder_pooler: bool = False
    """Whether the head takes the encoder's own pooled output; else it has a new pooler of its own."""
    encoder: EncoderConfig = EncoderConfig()


@dataclass
class SentencePredictionConfig(EncoderTaskConfig):
    """A class or a number for a sentence, or for a pair."""

    init_cls_pooler: bool = False
    """Whether a warm start takes the pooler of a pretraining's `next_sentence` head too."""
    metric_type: Literal["accuracy", "f1", "matthews_corrcoef", "pearson_spearman_corr"] = "accuracy"
    model: SentencePredictionModelConfig = SentencePredictionModelConfig()
    train_data: DataConfig = SentencePredictionDataConfig()
    validation_data: DataConfig = SentencePredictionDataConfig(is_training=False, drop_remainder=False)

    task_module: ClassVar[str] = "trellis.nlp.tasks.sentence_prediction"


@dataclass
class DistillationConfig(SentencePredictionConfig):
    """A class or a number for a sentence, or for a pair, learned from labels and from another model: the teacher."""

    teacher_dir: str = ""
    """A model that has learned the same classes: a run, what `trellis export` wrote, or a folder of Hugging Face's."""
    temperature: float = 2.0
    """What the logits of both are divided by before they are compared: the greater, the more the unlikely classes
    count."""
    soft_weight: float = 0.5
    """The share that the teacher's answers have of the loss; the rest is that of the labels."""
    train_data: DataConfig = SentencePredictionTextDataConfig()
    validation_data: DataConfig = SentencePredictionTextDataConfig(is_training=False, drop_remainder=False)

    task_module: ClassVar[str] = "trellis.nlp.tasks.distillation"


@dataclass
class MultiLabelModelConfig(Config):
    """An encoder with a head that tells of each label whether a sentence, or a pair, has it."""

    use_encoder_pooler: bool = False
    """Whether the head takes the encoder's own pooled output; else it has a new pooler of its own."""
    encoder: EncoderConfig = EncoderConfig()


@dataclass
class MultiLabelConfig(EncoderTaskConfig):
    """Any number of labels for a sentence, or for a pair."""

    model: MultiLabelModelConfig = MultiLabelModelConfig()
    class_names: list[str] | None = None
    """The labels, in the order of their numbers; null: those of the training data, in alphabetical order."""
    threshold: float = 0.5
    """How probable a label has to be to be given, each by itself."""
    train_data: DataConfig = MultiLabelDataConfig()
    validation_data: DataConfig = MultiLabelDataConfig(is_training=False, drop_remainder=False)

    task_module: ClassVar[str] = "trellis.nlp.tasks.multi_label"


@dataclass
class TaggingModelConfig(Config):
    """An encoder with a head that gives each token a tag."""

    encoder: EncoderConfig = EncoderConfig()
    head_dropout: float = 0.1
    head_initializer_range: float = 0.02


@dataclass
class TaggingConfig(EncoderTaskConfig):
    """A tag for each word of a sentence."""

    model: TaggingModelConfig = TaggingModelConfig()
    class_names: list[str] | None = None
    """The tags, in the order of their numbers; null: those of the training data, in alphabetical order."""
    scores_per_type: bool = False
    """Whether precision, recall and F1 of each type of span are metrics too, such as `PER/f1`."""
    train_data: DataConfig = TaggingDataConfig()
    validation_data: DataConfig = TaggingDataConfig(is_training=False, drop_remainder=False)

    task_module: ClassVar[str] = "trellis.nlp.tasks.tagging"


@dataclass
class QuestionAnsweringModelConfig(Config):
    """An encoder with a head that marks where an answer begins and ends."""

    encoder: EncoderConfig = EncoderConfig()


@dataclass
class QuestionAnsweringConfig(EncoderTaskConfig):
    """Which part of a passage answers a question, if any does."""

    n_best_size: int = 20
    """How many starts and ends are combined to candidates, and how many candidates an answer lists."""
    max_answer_length: int = 30
    """In tokens."""
    null_score_diff_threshold: float = 0.0
    """By how much "no answer" has to score higher than the best answer to be chosen, if questions may have none."""
    model: QuestionAnsweringModelConfig = QuestionAnsweringModelConfig()
    train_data: DataConfig = QADataConfig()
    validation_data: DataConfig = QADataConfig(is_training=False, drop_remainder=False)

    task_module: ClassVar[str] = "trellis.nlp.tasks.question_answering"


@dataclass
class DualEncoderModelConfig(Config):
    """An encoder that makes one vector of a text, and how vectors are compared."""

    max_sequence_length: int = 64
    normalize: bool = True
    """Whether vectors are divided by their length, so that their product is the cosine."""
    logit_scale: float = 1.0
    """What the product of two vectors is multiplied by before it is compared with others."""
    logit_margin: float = 0.0
    """By how much the product of two texts that belong together has to exceed the others."""
    bidirectional: bool = False
    """Whether the first texts are candidates for the second ones too, and not only the other way round."""
    eval_top_k: tuple[int, ...] = (1, 3, 10)
    """The numbers of candidates among which an evaluation looks for the right one."""
    pooling: Literal["mean", "cls", "max"] = "mean"
    """How the states of the tokens become one vector: their mean, the first one's, the greatest of each."""
    encoder: EncoderConfig = EncoderConfig()

    no_effect: ClassVar[Mapping[str, str]] = {
        "max_sequence_length": "seq_length of the data says how long a text may be"
    }


@dataclass
class DualEncoderConfig(EncoderTaskConfig):
    """A vector for a sentence, alike for sentences that belong together."""

    loss_type: Literal["in_batch_negatives", "triplet", "cosine_similarity", "cosent"] = "in_batch_negatives"
    """`in_batch_negatives` takes the other texts of a batch for wrong ones, `triplet` the column with negatives;
    `cosine_similarity` learns scores, and `cosent` their order."""
    model: DualEncoderModelConfig = DualEncoderModelConfig()
    train_data: DataConfig = DualEncoderDataConfig()
    validation_data: DataConfig = DualEncoderDataConfig(is_training=False, drop_remainder=False)

    task_module: ClassVar[str] = "trellis.nlp.tasks.embedding"
