"""What turns text into ids belongs to weights, records or a run, and a config cannot say otherwise."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import trellis.nlp.experiments  # noqa: F401  (registers them)
from tests.nlp.data.small_text import SPECIALS, write_tokenizer_json, write_vocabulary
from tests.nlp.tasks.small import bound, validated
from trellis.cli.main import main
from trellis.config import origin_of
from trellis.errors import ArgumentError, ConfigError
from trellis.experiments import ExperimentConfig, get_exp_config, plan_experiment, read_params, run_experiment
from trellis.nlp.answers import load_predictor
from trellis.nlp.data import TextSettings, build_tokenizer, get_sentence_task, train_vocabulary, write_sentence_data
from trellis.nlp.tasks.encoder_task import EncoderTask
from trellis.tasks import get_task

GOLDEN = Path(__file__).parents[2] / "golden/hugging_face/bert"
CASED = ["polish", "Polish", "the", "The", "cat", "Cat", ".", "is", "a", "b"]


def fill(words: list[str], n: int = 48 - len(SPECIALS)) -> list[str]:
    """The words, and as many others as the weights know besides."""
    return [*words, *(f"[unused{number}]" for number in range(n - len(words)))]


def weights(folder: Path, *, words: list[str] | None = None, **settings: Any) -> Path:
    shutil.copytree(GOLDEN, folder)
    write_vocabulary(folder / "vocab.txt", fill(CASED) if words is None else words)
    if settings:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def experiment(name: str = "bert/sentence_prediction_text", **task: Any) -> ExperimentConfig:
    params = get_exp_config(name)
    sizes = {"global_batch_size": 4, "seq_length": 12}
    params.override({"task": {"train_data": sizes, "validation_data": sizes}})
    params.override({"task": task, "trainer": {"train_steps": 2, "train_epochs": 0}})
    params.runtime.distribution_strategy = "off"
    return params


def rows(folder: Path) -> dict[str, Any]:
    lines = ["text\tlabel", *(f"the {word} cat .\t{label}" for word, label in [("Polish", 1), ("polish", 0)] * 8)]
    (folder / "rows.tsv").write_text("\n".join(lines) + "\n")
    return {"input_path": str(folder / "rows.tsv"), "text_fields": ["text"]}


def task_of(params: ExperimentConfig, model_dir: Path | None = None) -> EncoderTask:
    task = get_task(params.task, logging_dir=None if model_dir is None else str(model_dir))
    assert isinstance(task, EncoderTask)
    return task


def test_cased_weights_are_not_lower_cased_on_either_side_and_a_plan_shows_it(tmp_path: Path) -> None:
    folder = weights(tmp_path / "weights", do_lower_case=False)
    data = rows(tmp_path)
    params = experiment(hub_module_url=str(folder), train_data=data, validation_data=data)
    task = task_of(params)
    for side in ("train_data", "validation_data"):
        assert getattr(task.task_config, side).lower_case is False
        assert str(origin_of(task.task_config, f"{side}.lower_case")) == f"{folder}/vocab.txt"
    first, second = task.build_inputs(task.task_config.validation_data).batch(0)["input_word_ids"][:2]
    assert (first != second).any()
    report = plan_experiment(params, mode="train", model_dir=tmp_path / "run").report
    assert f"text: {folder}/vocab.txt, WordPiece, 48 tokens, cased, of the weights\n" in report
    assert f"task.train_data.lower_case is True: False, {folder}/vocab.txt\n" in report


@pytest.mark.parametrize("side", ["train_data", "validation_data"])
def test_a_setting_that_contradicts_the_weights_is_refused_with_its_place(tmp_path: Path, side: str) -> None:
    folder = weights(tmp_path / "weights", do_lower_case=False)
    message = rf"task.{side}.lower_case is true, but false for the weights in `{folder}`.\s+Leave it out, or set"
    with pytest.raises(ConfigError, match=message):
        task_of(experiment(hub_module_url=str(folder), **{side: {"lower_case": True}}))
    with pytest.raises(ConfigError, match=f"task.{side}.tokenization is SentencePiece, but WordPiece for the weights"):
        task_of(experiment(hub_module_url=str(folder), **{side: {"tokenization": "SentencePiece"}}))


def test_training_and_validation_cannot_differ_without_weights_either(tmp_path: Path) -> None:
    file = write_vocabulary(tmp_path / "words.txt", CASED)
    task = task_of(experiment(train_data={"vocab_file": file, "lower_case": False}, model={"num_classes": 2}))
    assert task.task_config.validation_data.lower_case is False
    with pytest.raises(ConfigError, match="task.validation_data.lower_case is false, but true for the vocabulary"):
        task_of(experiment(train_data={"vocab_file": file}, validation_data={"lower_case": False}))
    other = write_vocabulary(tmp_path / "other.txt", CASED[:-1])
    named = {"train_data": {"vocab_file": file}, "validation_data": {"vocab_file": other}}
    with pytest.raises(ConfigError, match="task.validation_data.vocab_file names 14 tokens that are not the 15 of the"):
        task_of(experiment(**named))


def test_a_tokenizer_json_alone_is_read_and_run_exactly(tmp_path: Path) -> None:
    folder = weights(tmp_path / "weights")
    (folder / "vocab.txt").unlink()
    write_tokenizer_json(folder / "tokenizer.json", fill(CASED), lowercase=False)
    data = rows(tmp_path)
    task = task_of(experiment(hub_module_url=str(folder), train_data=data))
    assert task.tokenizer is not None and task.tokenizer.tokens("the [MASK] Cat") == ["the", "[MASK]", "Cat"]
    # The same words by name are no contradiction: what the weights say of them counts.
    same = write_vocabulary(tmp_path / "same.txt", fill(CASED))
    named = task_of(experiment(hub_module_url=str(folder), train_data={**data, "vocab_file": same}))
    assert named.text is not None and named.text.tokenization == "tokenizer.json"


def test_a_vocabulary_above_the_weights_is_not_theirs(tmp_path: Path) -> None:
    folder = weights(tmp_path / "weights")
    shutil.move(folder / "vocab.txt", tmp_path / "vocab.txt")
    task = task_of(experiment(hub_module_url=str(folder), train_data=rows(tmp_path), model={"num_classes": 2}))
    assert task.text is None
    with pytest.raises(ConfigError, match="vocab_file is empty, and with the weights lies no vocab.txt, spiece.model"):
        task.build_inputs(task.task_config.train_data)


def test_a_vocabulary_of_another_size_than_the_weights_is_refused_unless_it_is_named(tmp_path: Path) -> None:
    small = weights(tmp_path / "small", words=fill(CASED, n=20), do_lower_case=False)
    with pytest.raises(
        ConfigError, match="small/vocab.txt` has 25 tokens, but the weights beside it know 48: it is of"
    ):
        task_of(experiment(hub_module_url=str(small)))
    named = {"vocab_file": str(small / "vocab.txt")}
    assert task_of(experiment(hub_module_url=str(small), train_data=named, model={"num_classes": 2})).text is not None
    # 48 is a multiple of 16: up to 15 rows may fill it up.
    padded = weights(tmp_path / "padded", words=fill(CASED, n=28))
    assert task_of(experiment(hub_module_url=str(padded), model={"num_classes": 2})).text is not None
    large = weights(tmp_path / "large", words=fill(CASED, n=50))
    with pytest.raises(ConfigError, match="has 55 tokens, but the weights beside it know 48"):
        task_of(experiment(hub_module_url=str(large)))


def test_another_vocabulary_than_that_of_the_weights_is_refused(tmp_path: Path) -> None:
    folder = weights(tmp_path / "weights")
    other = write_vocabulary(tmp_path / "other.txt", fill(CASED[::-1]))
    with pytest.raises(
        ConfigError, match="task.train_data.vocab_file names 48 tokens that are not the 48 of the weigh"
    ):
        task_of(experiment(hub_module_url=str(folder), train_data={"vocab_file": other}))


def write_records(
    folder: Path, *, lower_case: bool, tokenization: str = "WordPiece", words: str = ""
) -> dict[str, Any]:
    lines = ["sentence\tlabel", *(f"the {word} cat .\t{label}" for word, label in [("Polish", 1), ("polish", 0)] * 8)]
    (folder / "train.tsv").write_text("\n".join(lines) + "\n")
    vocabulary = words or write_vocabulary(folder / "words.txt", fill(CASED))
    write_sentence_data(
        get_sentence_task("SST-2"),
        input_dir=folder,
        output_paths={"train": str(folder / "train.tfrecord")},
        meta_data_file=str(folder / "meta.json"),
        tokenizer=build_tokenizer(vocabulary, tokenization=tokenization, lower_case=lower_case),
        seq_length=10,
    )
    return {"input_path": str(folder / "train.tfr*")}


ENCODER = {"vocab_size": 48, "hidden_size": 8, "num_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def test_a_run_on_records_is_asked_as_its_records_were_made(tmp_path: Path) -> None:
    data = write_records(tmp_path, lower_case=False)
    model = {"encoder": {"bert": ENCODER}}
    params = experiment("bert/sentence_prediction", train_data=data, validation_data=data, model=model)
    params.override({"task": {"train_data": {"seq_length": 10}, "validation_data": {"seq_length": 10}}})
    run_experiment(params, mode="train", model_dir=tmp_path / "run")
    kept = TextSettings.read(tmp_path / "run/text")
    assert kept is not None and (kept.tokenization, kept.lower_case) == ("WordPiece", False)
    assert (kept.text_fields, kept.label_values, kept.seq_length) == (("sentence",), ("0", "1"), 10)
    # What it was made of can be gone.
    (tmp_path / "words.txt").unlink()
    shutil.move(tmp_path / "run", tmp_path / "moved")
    ask = load_predictor(str(tmp_path / "moved"))
    first, second = ask([("the Polish cat .",), ("the polish cat .",)])
    assert first.values["probabilities"] != second.values["probabilities"]
    assert ask.text_columns == ["sentence"]


def test_records_of_sentencepiece_take_their_model_and_their_length_along(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the Polish cat .\nthe polish cat is a cat .\n" * 40)
    words, text = str(tmp_path / "words.model"), str(tmp_path / "text.txt")
    train_vocabulary(text, output_file=words, vocab_size=40, tokenization="SentencePiece", lower_case=False)
    data = write_records(tmp_path, lower_case=False, tokenization="SentencePiece", words=words)
    params = get_exp_config("bert/sentence_prediction")
    params.override({"task": {"train_data": data, "model": {"encoder": {"bert": ENCODER}}}})
    task = task_of(params)
    assert task.text is not None and (task.text.tokenization, task.text.lower_case) == ("SentencePiece", False)
    assert (task.text.vocab_file.name, task.task_config.train_data.seq_length) == ("spiece.model", 10)
    assert task.answerer.text_columns == ["sentence"]


def test_records_of_other_text_than_the_weights_are_refused(tmp_path: Path) -> None:
    data = write_records(tmp_path, lower_case=True)
    folder = weights(tmp_path / "weights", do_lower_case=False)
    message = (
        "task.train_data.input_path: the records were made otherwise than the weights in .*lower_case is true, not"
    )
    with pytest.raises(ConfigError, match=message) as raised:
        task_of(experiment("bert/sentence_prediction", hub_module_url=str(folder), train_data=data))
    assert f"Make them again with --vocab_file={folder}." in str(raised.value)


def test_records_tell_their_length_and_another_one_is_refused(tmp_path: Path) -> None:
    data = write_records(tmp_path, lower_case=False)
    with pytest.raises(ConfigError, match="task.train_data.seq_length is 12, but 10 for the records."):
        task_of(experiment("bert/sentence_prediction", train_data=data, model={"encoder": {"bert": ENCODER}}))


def test_a_run_tells_of_records_that_do_not_say_how_they_were_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_records(tmp_path, lower_case=False)
    shutil.rmtree(tmp_path / "train.tfrecord.text")
    params = experiment("bert/sentence_prediction", train_data=data, model={"encoder": {"bert": ENCODER}})
    params.override({"task": {"train_data": {"seq_length": 10}}})
    run_experiment(params, mode="train", model_dir=tmp_path / "run")
    assert "does not say how it was made: there is no train.tfrecord.text beside it." in capsys.readouterr().out
    with pytest.raises(ArgumentError, match="The vocabulary of the model in .* is not known: its data came as ids."):
        load_predictor(str(tmp_path / "run"))
    assert load_predictor(str(tmp_path / "run"), vocab_file=str(tmp_path / "words.txt")).text_columns == []


@pytest.fixture(scope="module")
def hub_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that started from weights, which are gone since, and has moved."""
    folder = tmp_path_factory.mktemp("hub")
    data = rows(folder)
    params = experiment(
        hub_module_url=str(weights(folder / "weights", do_lower_case=False)),
        train_data=data,
        validation_data=data,
        model={"encoder": {"bert": {"dropout_rate": 0.25}}},
    )
    run_experiment(params, mode="train", model_dir=folder / "run")
    shutil.rmtree(folder / "weights")
    shutil.move(folder / "run", folder / "moved")
    return folder


def test_a_run_from_a_hub_holds_its_encoder(hub_run: Path) -> None:
    params = read_params(hub_run / "moved")
    encoder = params.task.model.encoder.bert
    assert (encoder.hidden_size, encoder.num_layers, encoder.vocab_size) == (16, 2, 48)
    assert encoder.dropout_rate == 0.25
    assert params.task.train_data.lower_case is False
    assert "hidden_size: 16" in (hub_run / "moved/params.yaml").read_text()


def test_a_run_from_a_hub_is_asked_evaluated_and_resumed_alone(
    hub_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(hub_run / "moved", tmp_path / "run")
    first, second = load_predictor(str(tmp_path / "run"))([("the Polish cat .",), ("the polish cat .",)])
    assert first.values["probabilities"] != second.values["probabilities"]
    params = read_params(tmp_path / "run")
    run_experiment(params, mode="eval", model_dir=tmp_path / "run")
    # Another vocabulary that has come to lie where the weights were changes nothing.
    weights(hub_run / "weights", words=fill(CASED[::-1]))
    (hub_run / "weights/config.json").unlink()
    try:
        data = rows(hub_run)
        again = experiment(hub_module_url=str(hub_run / "weights"), train_data=data, validation_data=data)
        again.override(
            {"trainer": {"train_steps": 3}, "task": {"model": {"encoder": {"bert": {"dropout_rate": 0.25}}}}}
        )
        assert plan_experiment(again, mode="train", model_dir=tmp_path / "run").problems == []
        run_experiment(again, mode="train", model_dir=tmp_path / "run")
    finally:
        shutil.rmtree(hub_run / "weights")
    assert "regular_2" in capsys.readouterr().out and (tmp_path / "run/regular_3").is_dir()


def test_a_run_that_kept_a_vocabulary_alone_is_asked_by_the_rules_of_its_config(hub_run: Path, tmp_path: Path) -> None:
    """As runs of older versions did, whose encoder is in the directory of the weights."""
    shutil.copytree(hub_run / "moved", tmp_path / "run")
    shutil.move(tmp_path / "run/text/vocab.txt", tmp_path / "run/vocab.txt")
    shutil.rmtree(tmp_path / "run/text")
    task = task_of(read_params(tmp_path / "run"), tmp_path / "run")
    assert task.text is not None and (task.text.lower_case, task.text.vocab_size) == (False, 48)
    folder = weights(tmp_path / "weights", do_lower_case=False)
    text = (tmp_path / "run/params.yaml").read_text()
    (tmp_path / "run/params.yaml").write_text(
        text.replace(str(hub_run / "weights"), str(folder)).replace("hidden_size: 16", "hidden_size: 768")
    )
    assert task_of(read_params(tmp_path / "run"), tmp_path / "run").encoder_config.bert.hidden_size == 16


def test_a_run_from_a_hub_is_fine_tuned_from_alone(hub_run: Path, tmp_path: Path) -> None:
    data = rows(tmp_path)
    for source in (hub_run / "moved", hub_run / "moved/regular_2"):
        task = task_of(experiment(hub_module_url=str(source), train_data=data))
        assert (task.vocab_size, task.task_config.train_data.lower_case) == (48, False)
        assert task.text is not None and task.text.vocab_file == hub_run / "moved/text/vocab.txt"


def test_labels_may_be_called_differently_for_training_and_validation(hub_run: Path, tmp_path: Path) -> None:
    train = rows(tmp_path)
    (tmp_path / "dev.tsv").write_text((tmp_path / "rows.tsv").read_text().replace("label", "gold", 1))
    validation = {**train, "input_path": str(tmp_path / "dev.tsv"), "label_field": "gold"}
    task = task_of(experiment(hub_module_url=str(hub_run / "moved"), train_data=train, validation_data=validation))
    batch = dict(task.build_inputs(task.task_config.validation_data).batch(0))
    assert validated(task, bound(task, batch), batch)["labels"].tolist() == [1, 0, 1, 0]


def test_records_of_cased_weights_are_made_from_their_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_records(tmp_path, lower_case=True)
    folder = weights(tmp_path / "weights", do_lower_case=False)
    flags = ["data", "finetuning", "--classification_task_name=SST-2", f"--input_data_dir={tmp_path}"]
    flags += [f"--train_data_output_path={tmp_path}/cased.tfrecord", f"--meta_data_file_path={tmp_path}/meta.json"]
    assert main([*flags, f"--vocab_file={folder}", "--do_lower_case"]) == 2
    assert f"--do_lower_case is true, but false is what `{folder}` says. Leave it out." in capsys.readouterr().err
    assert main([*flags, f"--vocab_file={folder}"]) == 0
    assert json.loads((tmp_path / "meta.json").read_text())["text"]["lower_case"] is False
    assert main([*flags, f"--vocab_file={tmp_path}"]) == 2
    assert "holds no vocabulary. Give a file, or the directory of weights." in capsys.readouterr().err
