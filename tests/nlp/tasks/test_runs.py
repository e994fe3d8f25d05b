"""One story: an encoder is pretrained on text, fine-tuned on sentences and on questions, and asked."""

import io
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import flax.linen as nn
import numpy as np
import pytest

import trellis
import trellis.nlp.experiments
from tests.nlp.data.small_text import write_corpus_file, write_vocabulary
from trellis.cli.main import main
from trellis.errors import ArgumentError, CheckpointFileError, DataError
from trellis.experiments import (
    ExperimentConfig,
    export_experiment,
    get_exp_config,
    load_array_predictor,
    read_params,
    run_experiment,
)
from trellis.nlp.answers import Prediction, Predictor, load_predictor
from trellis.nlp.answers.predictor import read_model
from trellis.nlp.tasks.encoder_task import EncoderTask
from trellis.tasks import get_task

BLANKS = [("the [MASK] sat on [MASK] mat .",), ("[MASK] [MASK] [MASK] [MASK] cat .",)]
PAIRS = [("the cat sat .", "a cat sat ."), ("the dog ran .", "a mat")]
ENCODER = {
    "vocab_size": 24,
    "hidden_size": 8,
    "num_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 24,
}
PASSAGE = "the cat sat on a mat . the dog jumped on the cats ."


def experiment(name: str, *, data: dict[str, Any], task: dict[str, Any] | None = None) -> ExperimentConfig:
    params = get_exp_config(name)
    sizes = {"global_batch_size": 8, "seq_length": 20, **data}
    params.override({"task": {"train_data": sizes, "validation_data": sizes, **(task or {})}})
    params.override({"task": {"validation_data": {"drop_remainder": False}}, "trainer": {"train_steps": 2}})
    params.runtime.distribution_strategy = "off"
    return params


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has filled in blanks for two steps."""
    folder = tmp_path_factory.mktemp("pretrained")
    data = {
        "input_path": write_corpus_file(folder / "text.txt"),
        "vocab_file_path": write_vocabulary(folder / "words.txt"),
        "max_predictions_per_seq": 3,
        "tfds_name": "",
    }
    heads = [{"name": "next_sentence", "inner_dim": 8}]
    model = {"encoder": {"bert": ENCODER}, "cls_heads": heads}
    params = experiment("bert/text_wiki_pretraining", data=data, task={"model": model})
    _, logs = run_experiment(params, mode="train", model_dir=folder / "run", run_post_eval=True)
    assert set(logs) == {
        *("validation_loss", "masked_lm_accuracy", "lm_example_loss", "next_sentence_accuracy", "next_sentence_loss")
    }
    return folder / "run"


@pytest.fixture(scope="module")
def sentences(pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on pairs of sentences that took its encoder, settings and vocabulary included, from the pretraining."""
    folder = tmp_path_factory.mktemp("sentences")
    rows = [("the cat sat .", "a cat sat .", "yes"), ("the dog ran .", "the mat .", "no")] * 5
    (folder / "pairs.tsv").write_text("".join("\t".join(row) + "\n" for row in [("a", "b", "same"), *rows]))
    data = {"input_path": str(folder / "pairs.tsv"), "text_fields": ["a", "b"], "label_field": "same"}
    task = {"hub_module_url": str(pretrained), "metric_type": "f1"}
    params = experiment("bert/sentence_prediction_text", data={**data, "label_values": ["no", "yes"]}, task=task)
    params.override({"trainer": {"train_steps": 0, "train_epochs": 2}})
    _, logs = run_experiment(params, mode="train", model_dir=folder / "run", run_post_eval=True)
    assert set(logs) == {"validation_loss", "cls_accuracy", "auc", "f1"}
    assert read_params(folder / "run").task.model.num_classes == 2
    return folder / "run"


@pytest.fixture(scope="module")
def questions(pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on questions, some without an answer, whose weights came from the pretraining."""
    folder = tmp_path_factory.mktemp("questions")
    asked = [
        {"id": "1", "question": "who sat ?", "answers": [{"text": "the cat", "answer_start": 0}]},
        {"id": "2", "question": "who ran ?", "answers": [], "is_impossible": True},
    ]
    article = {"title": "", "paragraphs": [{"context": PASSAGE, "qas": asked}]}
    (folder / "squad.json").write_text(json.dumps({"version": "2.0", "data": [article]}))
    data = {"input_path": str(folder / "squad.json"), "version_2_with_negative": True, "query_length": 4}
    task = {"init_checkpoint": str(pretrained), "model": {"encoder": {"bert": ENCODER}}}
    params = experiment("bert/squad", data={**data, "global_batch_size": 2, "doc_stride": 4}, task=task)
    _, logs = run_experiment(params, mode="train", model_dir=folder / "run", run_post_eval=True)
    assert {"exact_match", "final_f1", "exact_match_threshold", "f1_threshold", "has_answer_f1"} <= set(logs)
    # At its best threshold even a model that knows nothing is silent half the time.
    assert 50 <= logs["best_f1"] <= 100
    return folder / "run"


def type_lines(monkeypatch: pytest.MonkeyPatch, lines: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))


def predictor(model_dir: Path) -> Predictor:
    return load_predictor(str(model_dir))


def trained_params(model_dir: Path) -> Any:
    params = read_params(model_dir)
    task = get_task(params.task)
    assert isinstance(task, EncoderTask)
    return read_model(task, model_dir / "regular_2", runtime=params.runtime).params


def test_blanks_are_filled_with_tokens_of_the_vocabulary_that_the_run_has_kept(pretrained: Path) -> None:
    (prediction,) = predictor(pretrained)([("the [MASK] sat on [MASK] mat .",)])
    first, *listed = prediction.text.splitlines()
    assert len(listed) == len(prediction.values["blanks"]) == 2
    best = [blank[0] for blank in prediction.values["blanks"]]
    assert first == "the *{}* sat on *{}* mat .".format(*(blank["word"] for blank in best))
    assert all(0 < blank["probability"] <= 1 for blank in best)
    assert (pretrained / "text/vocab.txt").read_bytes() == (pretrained.parent / "words.txt").read_bytes()


def test_a_run_on_sentences_has_the_encoder_of_its_hub_and_lengths_from_its_data(sentences: Path) -> None:
    params = read_params(sentences)
    assert (params.trainer.train_steps, params.task.train_data.input_path[-4:]) == (2, ".tsv")
    assert "train_steps: 2" in (sentences / "params.yaml").read_text()
    assert "2 epochs of 10 examples, 8 a batch" in (sentences / "provenance.yaml").read_text()


def test_pairs_are_classified_from_text_and_from_each_kind_of_file(sentences: Path, tmp_path: Path) -> None:
    ask = predictor(sentences)
    (prediction,) = ask([("the cat sat .", "a cat sat .")])
    assert prediction.values["label"] in ("no", "yes") and prediction.text.endswith("the cat sat . | a cat sat .")
    assert sum(prediction.values["probabilities"]) == pytest.approx(1, abs=1e-5)
    (tmp_path / "pairs.txt").write_text("the cat sat .\ta cat sat .\n\n")
    (tmp_path / "pairs.tsv").write_text("b\tmore\ta\na cat sat .\t-\tthe cat sat .\n")
    (tmp_path / "pairs.jsonl").write_text('{"a": "the cat sat .", "b": "a cat sat ."}\n')
    for name in ("pairs.txt", "pairs.tsv", "pairs.jsonl"):
        assert [item.values for item in ask.read(name)] == [prediction.values]


def test_questions_are_answered_from_their_passages(questions: Path, tmp_path: Path) -> None:
    ask = predictor(questions)
    (typed,) = ask([("who sat ?", PASSAGE)])
    assert typed.values["answer"] in PASSAGE
    from_file = {
        prediction.values["id"]: prediction.values for prediction in ask.read(str(questions.parent / "squad.json"))
    }
    assert set(from_file) == {"1", "2"}
    assert from_file["1"]["answer"] == typed.values["answer"]


def test_the_command_answers_text_files_and_what_is_typed(
    sentences: Path,
    questions: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    to_sentences, to_questions = (["predict", f"--model_dir={run}"] for run in (sentences, questions))
    assert main([*to_sentences, "--text=the cat .", "--text=a cat ."]) == 0
    answer = capsys.readouterr().out
    assert re.fullmatch(r"(yes|no) \(\d+%\)  the cat \. \| a cat \.\n", answer)
    type_lines(monkeypatch, b"the cat .\ta cat .\n\n")
    assert main(to_sentences) == 0
    assert capsys.readouterr().out == answer
    asked = f"--input_file={questions.parent / 'squad.json'}"
    assert main([*to_questions, asked, "--output_file=out/answers.json"]) == 0
    assert capsys.readouterr().out.endswith("Written to out/answers.json.\n")
    assert set(json.loads((tmp_path / "out/answers.json").read_text())) == {"1", "2"}


def test_a_warm_start_takes_the_encoder_and_leaves_the_head(pretrained: Path, questions: Path) -> None:
    before, after = (trained_params(run) for run in (pretrained, questions))
    words = before["encoder"]["embeddings"]["word_embeddings"]["embedding"]
    assert np.abs(words - after["encoder"]["embeddings"]["word_embeddings"]["embedding"]).max() < 1e-3
    assert set(after) == {"encoder", "span_labeling"}


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([("no blank",)], "'no blank' has no blank to fill. Write \\[MASK\\] where a word is missing."),
        ([("[MASK] " * 30,)], "has 32 tokens, but the model reads 20. Shorten it."),
        ([], "There is no text to answer."),
    ],
)
def test_text_without_an_answer_is_refused(pretrained: Path, texts: list[tuple[str, ...]], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        list(predictor(pretrained)(texts))


def test_files_that_do_not_fit_are_refused(sentences: Path, tmp_path: Path) -> None:
    (tmp_path / "one.tsv").write_text("a\nthe cat .\n")
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "squad.json").write_text('{"data": []}')
    ask = predictor(sentences)
    with pytest.raises(DataError, match="one.tsv: there is no column 'b' among 'a'. The model is asked a, b."):
        ask.read("one.tsv")
    with pytest.raises(DataError, match="empty.txt: there is no text in it."):
        ask.read("empty.txt")
    with pytest.raises(ArgumentError, match="squad.json: JSON holds questions .*, but the model answers sentences."):
        ask.read("squad.json")


def test_a_directory_that_holds_no_run_is_refused(sentences: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="There is no `nowhere/params.yaml`."):
        read_params("nowhere")
    with pytest.raises(CheckpointFileError, match="There is no checkpoint file in"):
        load_predictor(str(tmp_path), params=read_params(sentences))
    (tmp_path / "params.yaml").write_text("task: {colour: blue}\n")
    with pytest.raises(ArgumentError, match="No registered experiment has all the fields"):
        read_params(tmp_path)


def test_a_vocabulary_that_is_too_large_for_the_model_is_refused(sentences: Path, tmp_path: Path) -> None:
    words = write_vocabulary(tmp_path / "large.txt", [f"word{number}" for number in range(40)])
    with pytest.raises(ArgumentError, match="The vocabulary has 45 tokens, but the model in .* knows 24."):
        load_predictor(str(sentences), vocab_file=words)
    words = write_vocabulary(tmp_path / "other.txt", ["cat", "the"])
    with pytest.raises(
        ArgumentError, match="other.txt` are not those of the model in .*, which has its own vocabulary."
    ):
        load_predictor(str(sentences), vocab_file=words)


@pytest.fixture(scope="module")
def served(pretrained: Path, sentences: Path, questions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `trellis export` has written of the three runs."""
    folder = tmp_path_factory.mktemp("served")
    for name, run in (("blanks", pretrained), ("sentences", sentences), ("questions", questions)):
        params = read_params(run)
        export_experiment(params, model_dir=run, output_dir=folder / name, platforms=["cpu"])
    return folder


def assert_same_answers(predictions: list[Prediction], expected: list[Prediction]) -> None:
    assert [item.text for item in predictions] == [item.text for item in expected]
    for ours, theirs in zip(predictions, expected, strict=True):
        assert ours.values.keys() == theirs.values.keys()
        assert numbers_in(ours.values) == pytest.approx(numbers_in(theirs.values), abs=1e-5)


def numbers_in(values: Any) -> list[float]:
    if isinstance(values, dict | list | tuple):
        inner = values.values() if isinstance(values, dict) else values
        return [number for value in inner for number in numbers_in(value)]
    return [float(values)] if isinstance(values, int | float) else []


def test_a_text_model_is_asked_with_ids_too_and_by_a_checkpoint_file_that_is_named(
    sentences: Path, served: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids: Any = {
        spec.name: np.ones([3, *map(int, spec.shape[1:])], int) for spec in load_array_predictor(sentences).inputs
    }
    np.savez("ids.npz", **ids)
    for model_dir in (sentences, served / "sentences"):
        assert main(["predict", f"--model_dir={model_dir}", "--input_file=ids.npz"]) == 0
        assert capsys.readouterr().out.startswith("0  outputs [")
    texts = ["--text=the cat .", "--text=a cat ."]
    assert main(["predict", f"--model_dir={sentences}", "--checkpoint=2", *texts]) == 0
    assert main(["predict", f"--model_dir={sentences / 'regular_2'}", *texts]) == 0
    one, other = capsys.readouterr().out.splitlines()
    assert one == other
    for flags, message in (
        (["--checkpoint=9", *texts], "checkpoint is '9', which is no checkpoint file of the run"),
        (["--missing=a=1", "--input_file=ids.npz", "--text_fields=a"], "--text_fields is given, but the file holds"),
        (["--input_file=texts.tsv", "--columns=a"], "--columns is given, but the model answers text. Leave it out."),
        ([*texts, "--output_file=out.csv"], "answers to text are lines of JSON, but `out.csv` is a name of tables"),
    ):
        Path("texts.tsv").write_text("a\tb\nthe cat .\ta cat .\n")
        assert main(["predict", f"--model_dir={sentences}", *flags]) == 2
        assert message in capsys.readouterr().err


def test_a_served_model_answers_text_as_its_run_does(
    served: Path, pretrained: Path, sentences: Path, questions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"blanks": BLANKS, "sentences": PAIRS, "questions": [("who sat ?", PASSAGE), ("who ran ?", "a dog ran .")]}
    runs = {"blanks": pretrained, "sentences": sentences, "questions": questions}
    expected = {name: list(predictor(runs[name])(texts)) for name, texts in asked.items()}
    squad = list(predictor(questions).read(str(questions.parent / "squad.json")))

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("A served model is asked without its code.")

    monkeypatch.setattr(nn.Module, "__post_init__", refuse)
    monkeypatch.setattr(EncoderTask, "__init__", refuse)
    for name, texts in asked.items():
        assert_same_answers(list(load_predictor(str(served / name))(texts)), expected[name])
    assert_same_answers(
        list(load_predictor(str(served / "questions")).read(str(questions.parent / "squad.json"))), squad
    )


def test_the_command_asks_a_served_model_its_newest_version_and_that_of_an_executor(
    served: Path, sentences: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(served / "questions", tmp_path / "versions/9")
    shutil.copytree(served / "sentences", tmp_path / "versions/10")
    shutil.copytree(served / "sentences", tmp_path / "model/Format-Serving")
    outputs = []
    for directory in (sentences, served / "sentences", "versions", "model"):
        assert main(["predict", f"--model_dir={directory}", "--text=the cat .", "--text=a cat ."]) == 0
        outputs.append(capsys.readouterr().out)
    assert len(set(outputs)) == 1 and outputs[0].endswith("the cat . | a cat .\n")


def test_an_exported_text_model_tells_its_vocabulary_and_how_it_is_asked(
    sentences: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--experiment=bert/sentence_prediction_text", f"--model_dir={sentences}", "--platforms=cpu"]
    assert main(["export", *flags, "--output_dir=out"]) == 0
    assert capsys.readouterr().out.endswith("To ask it:   trellis predict --model_dir=out\n")
    model = trellis.load_model("out")
    assert model.files["vocab.txt"].read_bytes() == (sentences / "text/vocab.txt").read_bytes()
    assert model.manifest.metadata["text"] == {
        "answers": "sentences",
        "answerer": {"seq_length": 20, "label_values": ["no", "yes"], "text_columns": ["a", "b"], "column_names": None},
        "tokenizer": json.loads((sentences / "text/text.json").read_text()),
        "vocab_size": 24,
        "n_types": 2,
    }
    told = model.manifest.metadata["text"]["tokenizer"]
    assert (told["tokenization"], told["lower_case"], told["text_fields"]) == ("WordPiece", True, ["a", "b"])
    names = ["input_mask", "input_type_ids", "input_word_ids"]
    assert [spec.name for spec in model.signatures["inference_step"].spec.inputs] == names


def test_a_model_that_was_exported_when_less_was_told_answers_as_before(
    served: Path, sentences: Path, tmp_path: Path
) -> None:
    shutil.copytree(served / "sentences", tmp_path / "served")
    manifest = json.loads((tmp_path / "served/manifest.json").read_text())
    text = manifest["metadata"]["text"]
    del text["tokenizer"]
    text |= {"tokenization": "WordPiece", "lower_case": True}
    (tmp_path / "served/manifest.json").write_text(json.dumps(manifest))
    assert_same_answers(list(load_predictor(str(tmp_path / "served"))(PAIRS)), list(predictor(sentences)(PAIRS)))


def test_a_served_text_model_without_its_vocabulary_says_so(
    served: Path, sentences: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(served / "sentences", tmp_path / "served")
    words = tmp_path / "served/files/vocab.txt"
    content = words.read_bytes()
    words.write_bytes(content[:-9])
    ask = ["predict", "--model_dir=served", "--text=the cat .", "--text=a cat ."]
    assert main(ask) == 2
    assert capsys.readouterr().err.startswith("`served/files/vocab.txt` is damaged. Copy the whole directory again")
    words.unlink()
    assert main(ask) == 2
    assert capsys.readouterr().err.startswith("`served/files/vocab.txt` is missing. Copy the whole directory again")
    manifest = json.loads((tmp_path / "served/manifest.json").read_text())
    del manifest["checksums"]["files/vocab.txt"]
    (tmp_path / "served/manifest.json").write_text(json.dumps(manifest))
    assert main(ask) == 2
    assert "The vocabulary of the model in `served` is not known: its data came as ids." in capsys.readouterr().err
    assert main([*ask, f"--vocab_file={sentences / 'text/vocab.txt'}"]) == 0
    manifest["metadata"]["text"]["answers"] = "riddles"
    (tmp_path / "served/manifest.json").write_text(json.dumps(manifest))
    assert main(ask) == 2
    assert "`served` tells in a way that is not known here how it answers text ('riddles')." in capsys.readouterr().err
