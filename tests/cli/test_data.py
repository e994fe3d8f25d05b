"""`trellis data`, as a user types it."""

import json
from pathlib import Path

import pytest

from tests.cli.command import trellis, trellis_without_jax
from tests.nlp.data.small_questions import question, sky_vocabulary, write_squad
from tests.nlp.data.small_text import write_corpus_file, write_vocabulary
from trellis.cli.main import main
from trellis.data import decode_example, read_records


def test_the_tools_make_a_vocabulary_and_records_without_jax(tmp_path: Path) -> None:
    text = write_corpus_file(tmp_path / "text.txt")
    assert main(["data", "vocabulary", f"--input_file={text}", "--output_file=vocab.txt", "--vocab_size=60"]) == 0
    done = trellis(
        "data", "pretraining", f"--input_file={text}", f"--output_file={tmp_path}/a.tfrecord,{tmp_path}/b.tfrecord",
        f"--vocab_file={tmp_path}/vocab.txt", "--max_seq_length=24", "--dupe_factor=2", "--do_whole_word_mask",
        "--max_ngram_size=2",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    n_records = sum(len(list(read_records(tmp_path / name))) for name in ("a.tfrecord", "b.tfrecord"))
    assert done.stdout == f"{n_records} examples were written to {tmp_path}/a.tfrecord,{tmp_path}/b.tfrecord.\n"


def test_finetuning_makes_records_of_a_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.tsv").write_text("sentence\tlabel\nthe cat \t1\na dog\t0\n")
    flags = [
        "--classification_task_name=SST-2", f"--input_data_dir={tmp_path}", "--train_data_output_path=o/train",
        "--meta_data_file_path=o/meta.json", f"--vocab_file={write_vocabulary(tmp_path / 'vocab.txt')}",
    ]  # fmt: skip
    assert main(["data", "finetuning", *flags, "--do_lower_case=false", "--max_seq_length=8"]) == 0
    assert capsys.readouterr().out == "Examples: train 2. What a model needs to know of them: o/meta.json\n"
    assert len(list(read_records("o/train"))) == 2
    assert json.loads(Path("o/meta.json").read_text())["num_labels"] == 2


def test_finetuning_makes_records_of_questions_and_names_those_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = question("bad", "What?", "Sky")
    bad["answers"][0]["answer_start"] = 5
    file = write_squad(tmp_path / "squad.json", question("good", "What is blue?", "Sky"), bad)
    flags = [
        "--fine_tuning_task_type=squad", f"--squad_data_file={file}", "--train_data_output_path=o/train",
        "--meta_data_file_path=o/meta.json", f"--vocab_file={sky_vocabulary(tmp_path)}", "--max_query_length=8",
        "--max_seq_length=16",
    ]  # fmt: skip
    assert main(["data", "finetuning", *flags]) == 0
    assert "1 questions were left out: their answers are not in their passages (bad)" in capsys.readouterr().out
    assert decode_example(next(read_records("o/train")))["start_positions"][0] == 6


def test_help_is_there_without_jax() -> None:
    done = trellis_without_jax("data", "finetuning", "--help")
    assert done.returncode == 0
    assert "--classification_task_name" in done.stdout
    assert "the default is 128" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data"], "`trellis data` needs another word"),
        (["data", "finetunning"], "Did you mean `trellis data finetuning`?"),
        (["data", "finetuning"], "--meta_data_file_path is missing."),
        (["data", "finetuning", "--meta_data_file_path=m", "--classification_task_name=MRCP"], "Did you mean MRPC?"),
        (["data", "finetuning", "--meta_data_file_path=m", "--classification_task_name=STS-B"], "is a regression"),
        (["data", "finetuning", "--meta_data_file_path=m"], "Nothing is to be written"),
        (
            ["data", "finetuning", "--meta_data_file_path=m", "--train_data_output_path=t"],
            "--input_data_dir is missing",
        ),
        (["data", "finetuning", "--meta_data_file_path=m", "--max_seq_length=x"], "invalid int value: 'x'"),
        (["data", "finetuning", "--meta_data_file_path=m", "--do_lower_case=no"], "'no' is neither true nor false"),
        (
            ["data", "finetuning", "--meta_data_file_path=m", "--fine_tuning_task_type=squad"],
            "--squad_data_file is missing",
        ),
        (["data", "pretraining", "--input_file=no.txt", "--output_file=o"], "--vocab_file is missing"),
        (
            ["data", "pretraining", "--input_file=no.txt", "--output_file=o", "--tokenization=SentencePiece"],
            "--sp_model_file is missing",
        ),
        (["data", "vocabulary", "--input_file=no.txt", "--output_file=o"], "no.txt: no such file"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--on=ray", "--n_workers=2"],
            "--n_workers is 2, but --on=ray works on all cores of the cluster.",
        ),
        (
            ["--address=head:6379"],
            "--address is 'head:6379', but the work is done here. Add --on=ray",
        ),
        (["--n_workers=0"], "--n_workers is 0, but at least one process works."),
    ],
)
def test_who_works_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    text = write_corpus_file(tmp_path / "text.txt")
    vocabulary = write_vocabulary(tmp_path / "vocab.txt")
    files = [f"--input_file={text}", "--output_file=o", f"--vocab_file={vocabulary}"]
    assert main(["data", "pretraining", *files, *flags]) == 2
    assert message in capsys.readouterr().err


def test_data_is_shown_as_text_and_as_json_and_a_bad_flag_is_told() -> None:
    shown = trellis("data", "show", "--experiment=digits/classifier", "--split=validation", "--examples=1")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "Validation data: 297 examples (297 in all)" in shown.stdout
    assert "picture: float32[8, 8]" in shown.stdout
    assert "\x1b" not in shown.stdout
    told = trellis("data", "show", "--experiment=digits/classifier", "--examples=1", "--json")
    values = json.loads(told.stdout)
    assert (values["experiment"], values["side"], len(values["examples"])) == ("digits/classifier", "train", 1)
    wrong = trellis("data", "show", "--experiment=digits/classifier", "--split=test")
    assert (wrong.returncode, "invalid choice: 'test'" in wrong.stderr) == (2, True)
