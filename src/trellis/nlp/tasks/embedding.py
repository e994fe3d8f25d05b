"""The task of giving a sentence a vector, alike for sentences that belong together."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from trellis.aliases import JSON, Array, Batch, PyTree
from trellis.bridges import read_sentence_embedding, sentence_embedding_files
from trellis.config import Origin, Problem, merge, origin_of, raise_if_any, setting_at
from trellis.data import Stream
from trellis.errors import ModelError
from trellis.loops import Mean, MetricFunction, StepOutput, TrainState, batch_size, update_state
from trellis.nlp.answers import EmbeddingAnswerer
from trellis.nlp.data import build_pair_stream
from trellis.nlp.models import TEXT_SIDES, DualEncoder
from trellis.nlp.tasks import embedding_losses as losses, sentence_metrics
from trellis.nlp.tasks.configs import DualEncoderConfig
from trellis.nlp.tasks.encoder_task import EncoderTask
from trellis.nlp.tasks.pretrained import check_is_local, with_settings_of_run
from trellis.nlp.tasks.retrieval_metrics import recalls_and_mrr, retrieval_ranks
from trellis.nlp.tasks.text_source import SIDES
from trellis.nlp.tasks.text_view import view_text
from trellis.runtime import StepKeys
from trellis.tasks import BatchView, BoundModel, InputContext, Model, register_task_cls

_SCORED = ("cosine_similarity", "cosent")
"""The losses that learn scores."""
_OF_BATCH = ("in_batch_negatives", "cosent")
"""The losses that compare the examples of a batch with each other."""
_SLOPES = "slopes"
_SCORE = "score"


@register_task_cls(DualEncoderConfig)
class DualEncoderTask(EncoderTask):
    """Learns vectors of sentences from pairs that belong together, from triplets, or from scored pairs.

    What a folder of sentence-transformers, or a run, says of pooling, normalization and length is taken from it where
    nobody has set it. If nobody has set the loss, data with scores is learned by
    `cosine_similarity`.

    A loss that compares the examples of a batch is one of the global batch: on any number of devices, and with
    `n_microbatches` too. Then the vectors of all parts are computed first, and the parts once more for their gradients,
    which takes a forward pass more and the memory of one part.
    """

    def completed(self, params: Any) -> Any:
        """The config with what it leaves to the weights, to the text and to the data."""
        directory = params.hub_module_url and self._encoder_dir
        return _with_loss(super().completed(_with_pooling(params, directory) if directory else params))

    def problems(self) -> Iterator[Problem]:
        """Yields the problems with the config."""
        yield from super().problems()
        loss, data, model = self.task_config.loss_type, self.task_config.train_data, self.task_config.model
        if loss in _SCORED and not data.score_field and data.input_path:
            advice = "Name the column with the scores: --set task.train_data.score_field=score"
            yield self.problem("loss_type", f"is {loss}, but task.train_data.score_field is empty.", advice)
        if loss == "triplet" and not data.negative_text_fields and data.input_path:
            advice = "Name the column: --set task.train_data.negative_text_fields='[negative]'"
            yield self.problem("loss_type", "is triplet, but task.train_data.negative_text_fields is empty.", advice)
        if loss == "triplet" and not model.logit_margin:
            advice = "Say by how much cosines have to differ: --set task.model.logit_margin=0.5"
            yield self.problem("model.logit_margin", "is 0, with which triplets teach nothing more than order.", advice)
        if loss in _OF_BATCH and data.global_batch_size == 1:
            message = f"is 1, but {loss} compares the examples of a batch with each other."
            yield self.problem("train_data.global_batch_size", message, "Make it greater: the greater, the better.")
        wrong = [k for k in model.eval_top_k if k < 1]
        if wrong:
            yield self.problem("model.eval_top_k", f"has {wrong[0]}.", "Numbers of candidates are from 1 on.")

    def build_model(self) -> DualEncoder:
        """An encoder with a pooling."""
        config = self.task_config.model
        return DualEncoder(self.build_encoder(), pooling=config.pooling, is_normalized=config.normalize)

    def build_stream(self, params: Any, input_context: InputContext) -> Stream:
        """Pairs of texts, or triplets."""
        return build_pair_stream(params, input_context, tokenizer=self.tokenizer)

    def count_tokens(self, inputs: Batch) -> Array | None:
        """Those that the masks of all texts leave."""
        masks = [inputs[f"{side}_mask"] for side in _sides_of(inputs)]
        return sum((jnp.sum(mask != 0) for mask in masks[1:]), jnp.sum(masks[0] != 0)) if masks else None

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> Mean:
        """The loss that the config names."""
        loss = self._loss(labels, model_outputs)
        return Mean(loss.total + sum(aux_losses or (), jnp.float32(0)) * loss.weight, loss.weight)

    def _loss(self, batch: Mapping[str, Array], vectors: Array) -> Mean:
        config = self.task_config.model
        match self.task_config.loss_type:
            case "triplet":
                return losses.triplet_loss(vectors, margin=config.logit_margin)
            case "cosine_similarity":
                return losses.cosine_loss(vectors, batch[_SCORE])
            case "cosent":
                return losses.cosent_loss(vectors, batch[_SCORE], scale=config.logit_scale)
        keys = [batch[f"{side}_key"] for side in _sides_of(batch)]
        forth = self._in_batch(vectors, keys)
        if not config.bidirectional:
            return forth
        back = self._in_batch(vectors[:, 1::-1], keys[1::-1])
        return Mean((forth.total + back.total) / 2, forth.weight)

    def _in_batch(self, vectors: Array, keys: Sequence[Array]) -> Mean:
        """The loss of finding the second texts, among the negatives too, by the first ones."""
        config = self.task_config.model
        return losses.in_batch_loss(
            vectors[:, 0],
            jnp.concatenate(jnp.unstack(vectors, axis=1)[1:]),
            query_keys=keys[0],
            candidate_keys=jnp.concatenate(keys[1:]),
            scale=config.logit_scale,
            margin=config.logit_margin,
        )

    def train_step(
        self,
        inputs: Batch,
        *,
        state: TrainState,
        model: Model,
        optimizer: optax.GradientTransformation,
        metrics: Any = None,
        keys: StepKeys,
        n_microbatches: int = 1,
    ) -> tuple[TrainState, StepOutput]:
        """The state after one update; in parts, to the same effect, whatever the loss compares with each other."""
        options: dict[str, Any] = {"state": state, "model": model, "optimizer": optimizer, "keys": keys}
        size = batch_size(inputs)
        n = n_microbatches
        if n == 1 or self.task_config.loss_type not in _OF_BATCH or size % n:
            return super().train_step(inputs, **options, metrics=metrics, n_microbatches=n)

        def embed(params: PyTree, model_state: PyTree, batch: Batch, keys: StepKeys) -> tuple[Array, PyTree]:
            bound = BoundModel(model, params=params, model_state=model_state, rngs=keys.rngs(self.rng_collections))
            vectors: Array = bound(batch, training=True)
            if bound.losses:
                raise ModelError(
                    "The layers of the encoder have losses of their own, which are not added up over parts of a batch. "
                    "Set trainer.n_microbatches=1."
                )
            return vectors, bound.model_state

        def part(carry: None, indexed: tuple[Array, Batch]) -> tuple[None, Array]:
            # The keys are those that the part has below, so that dropout is the same.
            part_keys = StepKeys(keys["part"], indexed[0])
            return carry, embed(state.params, state.model_state, indexed[1], part_keys)[0]

        # Every n-th example, as the update cuts the batch.
        parts = jax.tree.map(lambda leaf: leaf.reshape(size // n, n, *leaf.shape[1:]).swapaxes(0, 1), inputs)
        _, vectors = jax.lax.scan(part, None, (jnp.arange(n), parts))
        vectors = jax.lax.stop_gradient(vectors.swapaxes(0, 1).reshape(size, *vectors.shape[2:]))
        weight = self.build_losses(inputs, vectors).weight
        slopes = jax.grad(lambda values: self.build_losses(inputs, values).total)(vectors)

        def forward(params: PyTree, model_state: PyTree, batch: Batch, keys: StepKeys) -> Any:
            part_vectors, model_state = embed(params, model_state, batch, keys)
            # Its gradient is that of the whole loss, of which each part has its share of the weight.
            share = Mean(jnp.sum(part_vectors * batch[_SLOPES]), weight * (len(part_vectors) / size))
            return model_state, {"loss": share}

        state, output = update_state(
            state,
            forward=forward,
            optimizer=optimizer,
            batch={**inputs, _SLOPES: slopes},
            keys=keys,
            n_parts=n,
        )
        measured = self._measure(inputs, vectors, BoundModel(model, params=state.params), metrics, size)
        return state, replace(output, loss=measured.pop(self.loss), metrics={**output.metrics, **measured})

    def validation_step(
        self, inputs: Batch, model: BoundModel, metrics: Mapping[str, MetricFunction] | None = None
    ) -> Mapping[str, Any]:
        """The loss, where the data has what it is of, and vectors, keys and scores for those of the whole set."""
        vectors = self.inference_step(inputs, model)
        names = [f"{side}_key" for side in _sides_of(inputs)] + [_SCORE] * (_SCORE in inputs)
        logs = {name: inputs[name] for name in names} | {"vectors": vectors.astype(jnp.float32)}
        loss = self.task_config.loss_type
        has_all = vectors.shape[1] == 3 if loss == "triplet" else loss not in _SCORED or _SCORE in inputs
        return logs | (dict(self._measure(inputs, vectors, model, metrics, batch_size(inputs))) if has_all else {})

    def aggregate_logs(self, state: Any, step_outputs: Mapping[str, Any]) -> Any:
        """All vectors, keys and scores so far."""
        names = ("vectors", _SCORE, *(f"{side}_key" for side in TEXT_SIDES))
        return [*(state or []), {name: step_outputs[name] for name in names if name in step_outputs}]

    def reduce_aggregated_logs(self, aggregated_logs: Any, global_step: int | None = None) -> dict[str, float]:
        """Correlations of cosines with scores or, without scores, how well texts find those that belong to them."""
        whole = {name: np.concatenate([logs[name] for logs in aggregated_logs]) for name in aggregated_logs[0]}
        vectors = whole["vectors"]
        if _SCORE in whole:
            cosines = _cosines(vectors[:, 0], vectors[:, 1])
            return {
                "spearman_cosine": sentence_metrics.spearman_correlation(cosines, labels=whole[_SCORE]),
                "pearson_cosine": sentence_metrics.pearson_correlation(cosines, labels=whole[_SCORE]),
            }
        keys = [whole[f"{side}_key"] for side in TEXT_SIDES if f"{side}_key" in whole]
        sides = [vectors[:, number] for number in range(vectors.shape[1])]
        scores = self._retrieved("left", sides, keys)
        if self.task_config.model.bidirectional:
            scores |= self._retrieved("right", sides[1::-1], keys[1::-1])
        return scores

    def _retrieved(self, name: str, sides: Sequence[np.ndarray], keys: Sequence[np.ndarray]) -> dict[str, float]:
        ranks = retrieval_ranks(
            sides[0], np.concatenate(sides[1:]), query_keys=keys[0], candidate_keys=np.concatenate(keys[1:])
        )
        return dict(recalls_and_mrr(ranks, top_k=self.task_config.model.eval_top_k, prefix=name))

    def view_batch(self, batch: Batch) -> BatchView:
        """The pieces of each text, as far as the vocabulary is known, and the score."""
        arrays = {name: np.asarray(values) for name, values in batch.items()}
        views = {
            side: view_text(
                {f"input_{name}": arrays[f"{side}_{name}"] for name in ("word_ids", "mask", "type_ids")},
                tokenizer=self.tokenizer,
            )
            for side in _sides_of(arrays)
        }
        labels = {_SCORE: arrays[_SCORE]} if _SCORE in arrays else {}

        def describe(row: int) -> dict[str, Any]:
            told = {side: view.describe(row) for side, view in views.items()}
            flat = {f"{side} {name}": value for side, texts in told.items() for name, value in texts.items()}
            return flat | {name: f"{values[row]:g}" for name, values in labels.items()}

        lengths = [view.lengths for view in views.values() if view.lengths is not None]
        return BatchView(
            inputs={side: view.inputs for side, view in views.items()},
            labels=labels,
            lengths=np.max(lengths, axis=0),
            row_length=views["left"].row_length,
            describe=describe,
        )

    def weights_settings(self) -> Mapping[str, Any]:
        """What sentence-transformers reads beside the encoder."""
        config = self.task_config.model
        files: Mapping[str, JSON] = sentence_embedding_files(
            pooling=config.pooling,
            is_normalized=config.normalize,
            width=self.encoder_config.get().hidden_size,
            seq_length=self.task_config.train_data.seq_length,
        )
        return {"more_settings": files}

    @property
    def answerer(self) -> EmbeddingAnswerer:
        """Tells the vector of a text, or how alike two texts are."""
        return EmbeddingAnswerer(self.task_config.train_data.seq_length)


def _cosines(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)
    cosines: np.ndarray = np.sum(left * right, axis=-1) / np.maximum(lengths, 1e-12)
    return cosines


def _sides_of(batch: Mapping[str, Any]) -> list[str]:
    return [side for side in TEXT_SIDES if f"{side}_word_ids" in batch]


def _with_loss(params: DualEncoderConfig) -> DualEncoderConfig:
    """The config with a loss for scores, if there are some and nobody has set one."""
    data: Any = params.train_data
    if not data.score_field or not origin_of(params, "loss_type").is_left_open:
        return params
    config = params.replace()
    origin = Origin(f"task.train_data.score_field={data.score_field}")
    raise_if_any(merge(config, setting_at("loss_type", "cosine_similarity", origin)))
    return config


def _with_pooling(params: Any, directory: str) -> Any:
    """The config with what a folder of sentence-transformers, or a run, says where nobody has set it."""
    check_is_local(directory, field="task.hub_module_url")
    lengths = [f"{side}.seq_length" for side in SIDES]
    paths = ("model.pooling", "model.normalize", *lengths)
    left_open = [path for path in paths if origin_of(params, path).is_left_open]
    folder = read_sentence_embedding(directory)
    if folder is None:
        return with_settings_of_run(directory, paths=left_open, config=params)
    values: dict[str, Any] = {"model.pooling": folder.pooling, "model.normalize": folder.is_normalized}
    values |= dict.fromkeys(lengths, folder.seq_length) if folder.seq_length is not None else {}
    config = params.replace()
    for path in left_open:
        if path in values:
            raise_if_any(merge(config, setting_at(path, values[path], Origin(directory))))
    return config
