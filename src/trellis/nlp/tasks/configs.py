"""Settings of the tasks on text."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from trellis.config import Config
from trellis.data import DataConfig
from trellis.nlp.data import (
    BertPretrainDataConfig,
    BertPretrainTextDataConfig,
    DualEncoderDataConfig,
    QADataConfig,
    SentencePredictionDataConfig,
    SentencePredictionTextDataConfig,
)
from trellis.nlp.models import ClsHeadConfig, EncoderConfig, PretrainerConfig
from trellis.tasks import TaskConfig

_NEXT_SENTENCE = ClsHeadConfig(inner_dim=768, num_classes=2, dropout_rate=0.1, name="next_sentence")
_LOCAL_TEXT = BertPretrainTextDataConfig(
    global_batch_size=32, seq_length=32, max_predictions_per_seq=5, use_next_sentence_label=False
)


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
