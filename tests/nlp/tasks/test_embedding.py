"""The task of vectors for sentences: losses and vectors are those of sentence-transformers, in parts and on devices."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import trellis.nlp.experiments  # noqa: F401  (registers them)
from tests.nlp.data.small_text import write_vocabulary
from tests.nlp.tasks.small import bound, encoder, one_step, part_of, sequences, validated
from trellis.cli.main import main
from trellis.errors import ConfigError
from trellis.experiments import export_experiment, get_exp_config, read_params, run_experiment
from trellis.nlp.answers import load_predictor
from trellis.nlp.models import DualEncoder, build_encoder
from trellis.nlp.tasks import DualEncoderConfig, DualEncoderModelConfig, read_hugging_face_experiment
from trellis.nlp.tasks.retrieval_metrics import recalls_and_mrr, retrieval_ranks
from trellis.tasks import Task, get_task

GOLDENS = Path(__file__).parents[2] / "golden" / "sentence_transformers"
LOSSES = json.loads((GOLDENS / "losses.json").read_text())
VECTORS = json.loads((GOLDENS / "vectors.json").read_text())
SENTENCES = [(sentence,) for sentence in VECTORS["sentences"]]
SIDES = ("left", "right", "negative")
POOLINGS: tuple[Any, ...] = ("mean", "cls", "max")


def task(loss: str = "in_batch_negatives", *, data: dict[str, Any] | None = None, **model: Any) -> Task:
    config = DualEncoderConfig(loss_type=loss, model=DualEncoderModelConfig(encoder=encoder(), **model))
    sides = {"seq_length": 12, "vocab_file": "", **(data or {})}
    config.override({"train_data": sides, "validation_data": sides})
    return get_task(config)


def pairs(n: int, *, n_texts: int = 2) -> dict[str, np.ndarray]:
    batch: dict[str, np.ndarray] = {"score": np.linspace(0, 1, n, dtype=np.float32)}
    for number, side in enumerate(SIDES[:n_texts]):
        made = sequences(n, seed=number)
        batch |= {name.replace("input", side): array for name, array in made.items()}
        batch[f"{side}_key"] = np.arange(number * n, (number + 1) * n, dtype=np.int32)
    return batch


def loss_and_slopes(task: Task, vectors: np.ndarray, batch: Mapping[str, np.ndarray]) -> tuple[float, np.ndarray]:
    def mean(values: Any) -> Any:
        loss = task.build_losses(batch, values)
        return loss.total / loss.weight

    value, slopes = jax.value_and_grad(mean)(jnp.asarray(vectors))
    return float(value), np.asarray(slopes)


@pytest.mark.parametrize(
    ("golden", "loss", "n_texts", "settings"),
    [
        ("in_batch", "in_batch_negatives", 2, {}),
        ("in_batch_with_negatives", "in_batch_negatives", 3, {}),
        ("bidirectional", "in_batch_negatives", 2, {"bidirectional": True}),
        ("triplet", "triplet", 3, {"logit_margin": 0.5}),
        ("cosine_similarity", "cosine_similarity", 2, {}),
        ("cosent", "cosent", 2, {}),
    ],
)
def test_losses_and_their_gradients_are_those_of_sentence_transformers(
    golden: str, loss: str, n_texts: int, settings: dict[str, Any]
) -> None:
    vectors = np.array(LOSSES["vectors"], np.float32)[:, :n_texts]
    batch = pairs(len(vectors), n_texts=n_texts) | {"score": np.array(LOSSES["scores"], np.float32)}
    value, slopes = loss_and_slopes(task(loss, logit_scale=LOSSES["scale"], **settings), vectors, batch)
    assert value == pytest.approx(LOSSES[golden]["loss"], rel=1e-5)
    # Theirs divides by the lengths once more, which takes out the part along a vector; here the model does.
    along = np.sum(slopes * vectors, axis=-1, keepdims=True) * vectors
    np.testing.assert_allclose(slopes - along, LOSSES[golden]["grads"], rtol=1e-5, atol=2e-6)


def test_a_margin_makes_the_right_text_exceed_the_others_by_it() -> None:
    vectors, batch = np.array(LOSSES["vectors"], np.float32)[:, :2], pairs(6)
    value, _ = loss_and_slopes(task(logit_scale=5.0, logit_margin=0.3), vectors, batch)
    logits = 5 * (vectors[:, 0] @ vectors[:, 1].T - 0.3 * np.eye(6))
    assert value == pytest.approx(np.mean(np.log(np.exp(logits).sum(axis=1)) - np.diag(logits)), rel=1e-5)


@pytest.mark.parametrize(
    "key",
    [
        {"right_key": [1, 2, 1]},  # the same second text
        {"left_key": [7, 8, 7]},  # the same first text, so that both second texts belong to it
        {"left_key": [3, 8, 9], "right_key": [1, 2, 3]},  # a second text that is the first text itself
    ],
)
def test_a_text_that_belongs_to_another_of_the_batch_is_no_negative_of_it(key: dict[str, list[int]]) -> None:
    vectors = np.array(LOSSES["vectors"], np.float32)[:3, :2]
    keys = {"left_key": [4, 5, 6], "right_key": [1, 2, 3], **key}
    batch = {name: np.array(values, np.int32) for name, values in keys.items()}
    batch |= {f"{side}_word_ids": np.zeros((3, 4), np.int32) for side in ("left", "right")}
    _, slopes = loss_and_slopes(task(), vectors, batch)
    only_first = vectors[:, 0] @ vectors[:, 1].T
    shares = np.exp(only_first)
    shares[0, 2] = 0
    if "left_key" not in key or key["left_key"] == [7, 8, 7]:
        shares[2, 0] = 0
    shares /= shares.sum(axis=1, keepdims=True)
    expected = (shares - np.eye(3)) @ vectors[:, 1] / 3
    np.testing.assert_allclose(slopes[:, 0], expected, atol=1e-6)


@pytest.mark.parametrize(("loss", "n_devices"), [("in_batch_negatives", 2), ("cosent", 1)])
def test_parts_of_a_batch_on_several_devices_learn_what_the_whole_batch_learns(loss: str, n_devices: int) -> None:
    batch = pairs(8)
    learner = task(loss, logit_scale=5.0, bidirectional=True)
    whole, output = one_step(learner, batch)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:n_devices]), ("data",))
    spread = jax.device_put(batch, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data")))
    state, of_parts = one_step(learner, spread, n_microbatches=2)
    loss_of = [float(one.loss.compute()) for one in (output, of_parts)]
    assert loss_of[1] == pytest.approx(loss_of[0], rel=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), state.params, whole.params)


def test_the_vectors_of_a_pair_are_those_of_its_texts_alone_and_pooled_as_the_config_says() -> None:
    batch = pairs(3)
    left = {name.replace("left", "input"): array for name, array in batch.items() if name.startswith("left_")}
    models = [DualEncoder(build_encoder(encoder()), pooling=pooling, is_normalized=False) for pooling in POOLINGS]
    params = bound(task(), batch).params

    @jax.jit
    def embed(batch: Any, left: Any) -> Any:
        hidden = models[0].encoder.apply({"params": params["encoder"]}, left)["sequence_output"]
        return hidden, [[model.apply({"params": params}, given) for given in (batch, left)] for model in models]

    hidden, vectors = jax.device_get(embed(batch, left))
    mask = left["input_mask"][..., None].astype(bool)
    mean = np.where(mask, hidden, 0).sum(axis=1) / mask.sum(axis=1)
    expected = [mean, hidden[:, 0], np.where(mask, hidden, -np.inf).max(axis=1)]
    for (both, alone), pooled in zip(vectors, expected, strict=True):
        assert both.shape == (3, 2, 8)
        np.testing.assert_allclose(both[:, 0], alone, atol=1e-6)
        np.testing.assert_allclose(alone, pooled, atol=1e-5)


def evaluated(task: Task, batch: dict[str, np.ndarray]) -> dict[str, float]:
    """What is measured in two batches of different size, as an evaluation does it."""
    model, state = bound(task, batch), None
    for rows in (slice(3), slice(3, None)):
        logs = validated(task, model, part_of(batch, rows))
        arrays = {name: np.asarray(value) for name, value in logs.items() if name != "loss"}
        state = task.aggregate_logs(state, arrays)
    return dict(task.reduce_aggregated_logs(state))


def test_scored_pairs_are_measured_by_correlations_and_others_by_what_they_find() -> None:
    batch = pairs(8)
    assert set(evaluated(task("cosine_similarity"), batch)) == {"spearman_cosine", "pearson_cosine"}
    del batch["score"]
    found = evaluated(task(eval_top_k=[1, 8], bidirectional=True), batch)
    names = {f"{side}_{name}" for side in ("left", "right") for name in ("recall_at_1", "recall_at_8", "mrr")}
    assert set(found) == names
    assert found["left_recall_at_8"] == found["right_recall_at_8"] == 1


def test_ranks_count_better_texts_that_do_not_belong() -> None:
    queries = np.eye(3, dtype=np.float32)
    candidates = np.array([[0.5, 0.1, 0], [0.9, 0.8, 0.3], [0.1, 0.9, 0.3], [0.6, 0, 0.3]], np.float32)
    keys = {"query_keys": np.array([1, 2, 3]), "candidate_keys": np.array([11, 12, 13, 14])}
    # For the first 0.9 and 0.6 are better; for the second 0.9; the third is one of three that are equal.
    assert retrieval_ranks(queries, candidates, **keys).tolist() == [3, 2, 2]
    # The same query belongs to both of the first two candidates, and the fourth is the query itself.
    keys = {"query_keys": np.array([1, 1, 3]), "candidate_keys": np.array([11, 12, 13, 1])}
    assert retrieval_ranks(queries, candidates, **keys).tolist() == [1, 2, 2]
    assert recalls_and_mrr(np.array([1, 4]), top_k=[1, 3], prefix="left")["left_mrr"] == pytest.approx(0.625)


@pytest.mark.parametrize("name", ["mean", "cls"])
def test_a_folder_of_sentence_transformers_is_asked_as_it_lies_with_its_own_vectors(name: str) -> None:
    folder = str(GOLDENS / name)
    predictor = load_predictor(folder, params=read_hugging_face_experiment(folder))
    ours = np.array([prediction.values["embedding"] for prediction in predictor(SENTENCES)])
    theirs = np.array(VECTORS["vectors"][name])
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    (compared,) = predictor([(SENTENCES[0][0], SENTENCES[1][0])])
    cosine = theirs[0] @ theirs[1] / np.linalg.norm(theirs[0]) / np.linalg.norm(theirs[1])
    assert compared.values["similarity"] == pytest.approx(cosine, abs=1e-5)


def write_pairs(folder: Path) -> str:
    rows = [("The cat sat.", "A cat sat on a mat.", "5"), ("A dog ran.", "dogs jump", "2"), ("Who?", "the mat", "0")]
    text = "".join("\t".join(row) + "\n" for row in [("a", "b", "score"), *rows, *rows[::-1]])
    (folder / "pairs.tsv").write_text(text)
    return str(folder / "pairs.tsv")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a step on scored pairs, from a folder of sentence-transformers."""
    folder = tmp_path_factory.mktemp("embedding")
    params = get_exp_config("encoder/embedding")
    data = {"input_path": write_pairs(folder), "left_text_fields": ["a"], "right_text_fields": ["b"]}
    data |= {"score_field": "score", "score_range": [0, 5], "global_batch_size": 4}
    params.override({"task": {"hub_module_url": str(GOLDENS / "cls"), "train_data": data, "validation_data": data}})
    params.override({"trainer": {"train_steps": 1, "train_epochs": 0}})
    params.override({"trainer": {"optimizer_config": {"warmup": {"type": None}}}})
    params.runtime.distribution_strategy = "off"
    _, logs = run_experiment(params, mode="train", model_dir=folder / "run", run_post_eval=True)
    assert set(logs) == {"validation_loss", "spearman_cosine", "pearson_cosine"}
    return folder / "run"


def test_a_run_takes_pooling_length_and_loss_from_folder_and_data(run: Path) -> None:
    config = read_params(run).task
    filled = get_task(config, logging_dir=str(run)).task_config
    assert (filled.model.pooling, filled.model.normalize, filled.train_data.seq_length) == ("cls", False, 16)
    assert filled.loss_type == "cosine_similarity"
    # A run that starts from it does so too, and so does the run itself when the command that began it is given again.
    new = DualEncoderConfig(hub_module_url=str(run))
    for logging_dir in (None, str(run)):
        taken = get_task(new, logging_dir=logging_dir).task_config
        assert (taken.model.pooling, taken.model.normalize, taken.train_data.seq_length) == ("cls", False, 16)
    new.model.pooling = "max"
    assert get_task(new).task_config.model.pooling == "max"


def test_an_export_is_a_folder_that_is_read_again_with_the_same_vectors(run: Path, tmp_path: Path) -> None:
    written = tmp_path / "written"
    export_experiment(read_params(run), model_dir=run, output_dir=written, format="hugging_face")
    assert {path.relative_to(written).as_posix() for path in written.rglob("*.json")} == {
        *("config.json", "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"),
        *("1_Pooling/config.json", "tokenizer.json", "tokenizer_config.json"),
    }
    again = load_predictor(str(written), params=read_hugging_face_experiment(written))
    for ours, theirs in zip(load_predictor(str(run))(SENTENCES), again(SENTENCES), strict=True):
        np.testing.assert_allclose(ours.values["embedding"], theirs.values["embedding"], atol=1e-5)


def test_the_command_answers_vectors_similarities_and_what_is_wrong(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", f"--model_dir={run}", "--text=The cat sat.", "--text=The cat sat."]) == 0
    assert capsys.readouterr().out.startswith("1.000  The cat sat. | The cat sat.")
    output = tmp_path / "answers.jsonl"
    flags = [f"--model_dir={run}", f"--input_file={write_pairs(tmp_path)}", f"--output_file={output}"]
    assert main(["predict", *flags, "--text_fields=a"]) == 0
    assert [len(json.loads(line)["embedding"]) for line in output.read_text().splitlines()] == [16] * 6
    assert main(["predict", *flags]) == 2
    assert "--text_fields" in capsys.readouterr().err
    assert main(["predict", f"--model_dir={run}", "--text=a", "--text= "]) == 2
    assert "the second text is empty" in capsys.readouterr().err


def test_a_batch_is_shown_with_the_pieces_of_both_texts_and_the_score(run: Path) -> None:
    shown = get_task(read_params(run).task, logging_dir=str(run))
    view = shown.view_batch(shown.build_inputs(shown.task_config.validation_data).batch(0))
    assert view.describe(0) == {
        "left tokens": ["[CLS]", "the", "cat", "sat", ".", "[SEP]"],
        "left length": "6 of 16",
        "right tokens": ["[CLS]", "a", "cat", "sat", "on", "a", "mat", ".", "[SEP]"],
        "right length": "9 of 16",
        "score": "1",
    }


@pytest.mark.parametrize(
    ("loss", "data", "model", "message"),
    [
        ("cosine_similarity", {"input_path": "x.tsv"}, {}, "task.loss_type is cosine_similarity, but .*score_field"),
        ("cosent", {"input_path": "x.tsv"}, {}, "task.loss_type is cosent, but"),
        ("triplet", {"input_path": "x.tsv"}, {"logit_margin": 0.5}, "negative_text_fields is empty"),
        ("triplet", {}, {}, "task.model.logit_margin is 0, with which triplets teach"),
        ("in_batch_negatives", {"global_batch_size": 1}, {}, "global_batch_size is 1, but in_batch_negatives compares"),
        ("in_batch_negatives", {}, {"eval_top_k": [1, 0]}, "task.model.eval_top_k has 0"),
        ("in_batch_negatives", {"seq_length": 99}, {}, "seq_length is 99, but the encoder has positions for 16"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_is_made(
    loss: str, data: dict[str, Any], model: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        task(loss, data=data, **model)


def test_validation_may_have_scores_where_training_has_none(tmp_path: Path) -> None:
    vocabulary = write_vocabulary(tmp_path / "vocab.txt")
    params = get_exp_config("encoder/embedding")
    data = {"input_path": write_pairs(tmp_path), "left_text_fields": ["a"], "right_text_fields": ["b"]}
    data |= {"vocab_file": vocabulary, "global_batch_size": 4, "seq_length": 12}
    scored = {**data, "score_field": "score", "score_range": [0, 5]}
    params.override(
        {"task": {"model": {"encoder": encoder().as_dict()}, "train_data": data, "validation_data": scored}}
    )
    assert get_task(params.task).task_config.loss_type == "in_batch_negatives"
