"""The task of predicting a class or a number for a sentence as another model does it: its teacher."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from trellis.aliases import Array, Variables
from trellis.config import Problem
from trellis.data import Stream
from trellis.extensions import newest_file
from trellis.loops import Mean, MetricFunction, weighted_mean
from trellis.nlp.data import SentencePredictionTextDataConfig, build_sentence_stream
from trellis.nlp.tasks.configs import DistillationConfig
from trellis.nlp.tasks.sentence_prediction import SentencePredictionTask
from trellis.nlp.tasks.teacher import TEACHER_LOGITS, note_teacher, teacher_columns
from trellis.tasks import BoundModel, InputContext, register_task_cls, traceable


@register_task_cls(DistillationConfig)
class DistillationTask(SentencePredictionTask):
    """Classifies sentences or pairs or, with one class, rates them: learned from labels and from a teacher's logits.

    The teacher answers the text to train on once, by its own vocabulary, and its logits are a column of the data from
    then on: nothing of it is in the model, in the optimizer or in checkpoint files, and a run resumes without it.
    """

    def problems(self) -> Iterator[Problem]:
        """Yields the problems with the config."""
        yield from super().problems()
        config = self.task_config
        if not config.temperature > 0:
            yield self.problem("temperature", f"is {config.temperature:g}.", "It is greater than 0; 2 is usual.")
        if not 0 <= config.soft_weight <= 1:
            message = f"is {config.soft_weight:g}, but it is the teacher's share of the loss."
            yield self.problem("soft_weight", message, "Set it from 0 (labels alone) to 1 (the teacher alone).")
        # Without data there is nobody to be taught, and a run that has begun has the answers.
        if not config.train_data.input_path or self._has_begun:
            return
        if not isinstance(config.train_data, SentencePredictionTextDataConfig):
            advice = "Give text, in a SentencePredictionTextDataConfig: a teacher reads it by its own vocabulary."
            yield self.problem("train_data", f"is a {type(config.train_data).__name__}, of records.", advice)
        if not config.teacher_dir:
            advice = "Name the directory of a trained model: --set task.teacher_dir=runs/large"
            yield self.problem("teacher_dir", "is empty, but somebody has to teach.", advice)
        elif not Path(config.teacher_dir).is_dir():
            advice = "Give the directory of a run, of what `trellis export` wrote, or one of Hugging Face's."
            yield self.problem("teacher_dir", f"is {config.teacher_dir}, which does not exist.", advice)

    @property
    def _has_begun(self) -> bool:
        return bool(self.logging_dir) and newest_file(Path(self.logging_dir)) is not None

    def build_stream(self, params: Any, input_context: InputContext) -> Stream:
        """Sentences or pairs with labels; those to train on have the logits of the teacher too."""
        if not params.is_training:
            return super().build_stream(params, input_context)
        n_classes = self.task_config.model.num_classes
        logits = teacher_columns(
            params,
            teacher_dir=self.task_config.teacher_dir,
            run_dir=self.logging_dir,
            n_classes=n_classes,
            labels=self.label_names,
        )
        known = None if self.is_regression else n_classes
        return build_sentence_stream(params, input_context, n_classes=known, tokenizer=self.tokenizer, more=logits)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> Mean:
        """The loss of the labels and, in training, that of the teacher, each with its share."""
        hard = super().build_losses(labels, model_outputs, aux_losses)
        if TEACHER_LOGITS not in labels:
            return hard
        soft = self._soft_loss(model_outputs, labels)
        share = self.task_config.soft_weight
        return Mean((1 - share) * hard.total + share * soft.total, hard.weight)

    def build_metrics(self, training: bool = True) -> dict[str, MetricFunction]:
        """Those of the labels and, in training, how far the model is from its teacher."""
        return super().build_metrics(training) | ({"soft_loss": self._soft_loss} if training else {})

    def _soft_loss(self, logits: Array, batch: Mapping[str, Array]) -> Mean:
        """The divergence from the teacher's probabilities, times the square of the temperature; of numbers the square.

        So its gradient is as large as that of labels at any temperature (Hinton et al., 2015).
        """
        logits, teacher = logits.astype(jnp.float32), batch[TEACHER_LOGITS]
        if self.is_regression:
            return weighted_mean(jnp.square(logits[:, 0] - teacher[:, 0]))
        temperature = self.task_config.temperature
        ours, theirs = (jax.nn.log_softmax(values / temperature, axis=-1) for values in (logits, teacher))
        return weighted_mean(jnp.sum(jnp.exp(theirs) * (theirs - ours), axis=-1) * temperature**2)

    def answering_config(self) -> Any:
        """The config without the places of weights, text and teacher."""
        return super().answering_config().replace(teacher_dir="")

    @traceable
    def initialize(self, model: BoundModel) -> Variables:
        """The pretrained variables to start from at step 0; the run keeps which teacher it began with."""
        if self.logging_dir and Path(self.logging_dir).is_dir() and self.task_config.teacher_dir:
            note_teacher(self.task_config.teacher_dir, run_dir=self.logging_dir)
        return super().initialize(model)
