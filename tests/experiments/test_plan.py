"""A run before its first step: what is told of it, and what is found to be wrong."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import trellis
import trellis.experiments.digits
from tests.trainer import small
from trellis.errors import ConfigError
from trellis.experiments import plan_experiment, resolve, run_experiment
from trellis.runtime import Peak, Placement

BEST = {"best_checkpoint_export_subdir": "best", "best_checkpoint_eval_metric": "accuracy"}


def planned(params: trellis.ExperimentConfig, model_dir: Path, mode: str = "train_and_eval") -> tuple[str, list[str]]:
    plan = plan_experiment(params, mode=mode, model_dir=model_dir)
    return plan.report, [str(problem) for problem in plan.problems]


def digits(*settings: str) -> trellis.ExperimentConfig:
    return resolve("digits/classifier", settings=["runtime.distribution_strategy=one_device", *settings])


def lines_of(report: str, label: str) -> list[str]:
    """The lines of a section, without its label."""
    found, inside = [], False
    for line in report.splitlines():
        inside = line.startswith(label) or (inside and line.startswith(" "))
        found += [line[11:]] if inside else []
    return found


def test_a_plan_tells_what_the_run_is_made_of_and_writes_nothing(tmp_path: Path) -> None:
    report, problems = planned(digits("runtime.enable_xla=true"), tmp_path / "run")
    assert problems == []
    assert not (tmp_path / "run").exists()
    assert lines_of(report, "Model") == [
        "DigitsClassifier: 4,810 parameters, 18.7 kB",
        "  classifier    650  13.5%  float32   2.5 kB",
        "  encoder     4,160  86.5%  float32  16.2 kB",
        "gives float32[32,10]",
    ]
    assert lines_of(report, "Data") == [
        "training: batches of 32, (float32[32,64], int32[32]); 1,500 examples, 46.9 batches an epoch",
        "validation: batches of 64, (float32[64,64], int32[64]); 297 examples, 4.6 batches an epoch; 5 batches",
    ]
    assert lines_of(report, "Steps") == [
        "500, which see 16,000 examples, 10.7 epochs",
        "optimizer: adam",
        "warm-up: linear, 50 steps",
        "learning rate: cosine, 0 at step 0, 0.00293 at step 50, 0.0015 at step 250, 0 at step 500",
    ]
    assert lines_of(report, "Every")[0] == "100 steps: training metrics, evaluation, checkpoint file"
    assert lines_of(report, "Metrics") == [
        "train: accuracy, loss",
        "eval: accuracy, loss",
        "best: the highest eval/accuracy",
    ]
    assert lines_of(report, "Memory")[0] == (
        "83.2 kB on each device: parameters 18.7 kB, gradients 18.7 kB, optimizer state 37.5 kB, batch 8.1 kB"
    )
    (together,) = lines_of(report, "Together")
    assert re.fullmatch(
        r"a step of about \S+ FLOP leaves a cpu idle: several runs as one .* pay \(--together\)", together
    )
    assert lines_of(report, "Start") == ["step 0, with new parameters"]
    assert "learning_rate.cosine.decay_steps is null: 500, the whole run" in lines_of(report, "Chosen")
    assert lines_of(report, "No effect") == ["runtime.enable_xla (--set): JAX compiles every step"]


def test_a_step_that_fills_the_device_is_told_to_those_who_would_run_several_as_one_program(tmp_path: Path) -> None:
    report, _ = planned(digits("task.hidden_size=4096", "task.train_data.global_batch_size=512"), tmp_path)
    (together,) = lines_of(report, "Together")
    assert "keeps a cpu busy by itself: runs as one program will hardly pay" in together


def test_a_plan_counts_frozen_parameters_apart_and_tells_the_rates_of_groups(tmp_path: Path) -> None:
    groups = "trainer.optimizer_config.groups=[{parameters: [encoder], name: body, learning_rate_factor: 0.1}]"
    report, problems = planned(digits("trainer.optimizer_config.frozen=[encoder/kernel]", groups), tmp_path)
    assert problems == []
    assert lines_of(report, "Model")[:3] == [
        "DigitsClassifier: 4,810 parameters, 18.7 kB, 714 of them trained",
        "  classifier    650  13.5%  float32   2.5 kB",
        "  encoder     4,160  86.5%  float32  16.2 kB  4,096 frozen",
    ]
    assert lines_of(report, "Steps")[-1] == "  body: 0.1 times that"
    assert lines_of(report, "Memory")[0] == (
        "35.2 kB on each device: parameters 18.7 kB, gradients 2.7 kB, optimizer state 5.5 kB, batch 8.1 kB"
    )


def test_a_plan_names_frozen_parts_that_are_not_there(tmp_path: Path) -> None:
    _, problems = planned(digits("trainer.optimizer_config.frozen=[encodr]"), tmp_path)
    assert "'encodr' matches no parameter. Did you mean 'encoder'?" in problems[0]


@pytest.mark.parametrize(
    ("platform", "settings", "expected"),
    [
        ("cpu", [], "steps are exact to the bit"),
        ("gpu", [], "steps are exact to the bit"),
        ("gpu", ["runtime.exact=false"], "steps are not exact to the bit, as was asked for (runtime.exact=false, "),
    ],
)
def test_a_plan_and_a_run_on_gpus_tell_whether_it_is_exact(
    platform: str,
    settings: list[str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Placement, "platform", platform)
    params = digits(*settings, "trainer.train_steps=1", "trainer.optimizer_config.warmup.type=null")
    report, _ = planned(params, tmp_path / "run", mode="train")
    assert lines_of(report, "Devices")[1].startswith(expected)
    run_experiment(params, mode="train", model_dir=tmp_path / "run")
    assert ("\nS" + expected[1:] in capsys.readouterr().out) is (platform == "gpu")


def test_a_plan_leaves_a_directory_that_is_there_as_it_is(tmp_path: Path) -> None:
    class Writing(small.SmallTask):
        """Keeps a file with its run, as tasks do that need one to answer later."""

        def initialize(self, model: Any) -> Any:
            if self.logging_dir:
                Path(self.logging_dir, "vocab.txt").write_text("words")
            return super().initialize(model)

    @dataclass
    class WritingConfig(small.SmallConfig):
        init_checkpoint: str = str(tmp_path)

    trellis.register_task_cls(WritingConfig)(Writing)
    run = tmp_path / "run"
    run.mkdir()
    params = small.params(5)
    planned(params.replace(task=WritingConfig()), run)
    assert list(run.iterdir()) == []


def test_a_plan_tells_what_a_task_has_filled_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill_in(self: Any, params: Any, **rest: Any) -> None:
        filled = params.replace(train_data={"global_batch_size": 4})
        trellis.Task.__init__(self, filled, **rest)

    monkeypatch.setattr(small.SmallTask, "__init__", fill_in)
    given = small.params(5)
    report, problems = planned(given, tmp_path)
    before = given.task.train_data.global_batch_size
    (line,) = (line for line in lines_of(report, "Chosen") if "global_batch_size" in line)
    assert problems == []
    assert line.startswith(f"task.train_data.global_batch_size is {before}: 4, ")
    assert given.task.train_data.global_batch_size == before != 4


def test_a_plan_tells_that_a_task_brings_parameters_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small.SmallTask, "initialize", lambda self, model: model.variables)
    report, _ = planned(small.params(5), tmp_path)
    assert lines_of(report, "Start") == ["step 0, with parameters from SmallTask.initialize"]


def test_a_task_that_could_take_parameters_and_is_given_none_starts_with_new_ones(tmp_path: Path) -> None:
    """As the tasks for text: they read weights of several kinds, if their config names some."""

    @dataclass
    class NamingConfig(small.SmallConfig):
        hub_module_url: str = ""

        @property
        def starts_from(self) -> str:
            return self.hub_module_url

    class Naming(small.SmallTask):
        def initialize(self, model: Any) -> Any:
            return model.variables

    trellis.register_task_cls(NamingConfig)(Naming)
    report, _ = planned(small.params(5).replace(task=NamingConfig()), tmp_path)
    assert lines_of(report, "Start") == ["step 0, with new parameters"]
    report, _ = planned(small.params(5).replace(task=NamingConfig(hub_module_url="bert")), tmp_path)
    assert lines_of(report, "Start") == ["step 0, with parameters from bert"]


def test_a_plan_has_the_periods_of_the_run(tmp_path: Path) -> None:
    params = small.params(
        24, steps_per_loop=12, summary_interval=12, checkpoint_interval=6, validation_interval=4, max_to_keep=9
    )
    report, _ = planned(params, tmp_path)
    assert lines_of(report, "Every") == [
        "4 steps: training metrics, evaluation",
        "6 steps: training metrics, checkpoint file",
        "and all of it at the last step",
    ]
    steps: list[int] = []

    def look(checkpoint: trellis.Checkpoint) -> trellis.Checkpoint:
        steps.append(checkpoint.step)
        return checkpoint

    trellis.run_experiment(params, mode="train_and_eval", model_dir=tmp_path / "run", extensions=[look])
    assert steps == [step for step in range(1, 25) if step % 4 == 0 or step % 6 == 0]


def test_validation_data_without_a_batch_is_told(tmp_path: Path) -> None:
    few = digits("task.validation_data.global_batch_size=9999", "task.validation_data.drop_remainder=true")
    _, problems = planned(few, tmp_path)
    assert problems[0].startswith("The validation data has no batch, so nothing could be evaluated. Give it examples")


def test_a_misspelt_metric_of_a_task_with_host_metrics_is_told_the_nearest(tmp_path: Path) -> None:
    report, _ = planned(small.params(**BEST | {"best_checkpoint_eval_metric": "acuracy"}), tmp_path)
    assert lines_of(report, "Metrics")[-1].endswith("cannot be checked before. Did you mean accuracy?)")


def test_averages_are_counted_apart_from_the_rest_of_the_optimizer(tmp_path: Path) -> None:
    params = small.params(optimizer_config={"ema": {"average_decay": 0.9}})
    report, _ = planned(params, tmp_path)
    assert "optimizer state 876 B, averages 432 B, " in lines_of(report, "Memory")[0]
    assert "optimizer: adam, averaged with a decay of 0.9" in lines_of(report, "Steps")


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "empty.tfrecord").touch()
    params = digits(
        "trainer.train_steps=40",
        "trainer.best_checkpoint_eval_metric=acuracy",
        "trainer.validation_steps=9",
        "task.train_data.input_path=empty.tfrecord, nowhere/*.tfrecord",
        "task.init_checkpoint=emty.tfrecord",
        "task.train_data.global_batch_size=30",
        "trainer.n_microbatches=4",
    )
    _, problems = planned(params, tmp_path / "run")
    assert [problem.splitlines()[0].removeprefix("--set: ").partition(": ")[0] for problem in problems] == [
        "task.train_data.global_batch_size is 30, which cannot be cut into trainer.n_microbatches=4 equal parts.",
        "task.train_data.input_path names an empty file",
        "task.train_data.input_path matches no file",
        "task.init_checkpoint names a checkpoint that is not there",
    ]
    assert "--set=task.train_data.global_batch_size=28" in problems[0]
    assert "There is no directory `nowhere`" in problems[2]
    assert "Did you mean `empty.tfrecord`?" in problems[3]


@pytest.mark.parametrize(
    ("settings", "said", "fix"),
    [
        (
            ["trainer.best_checkpoint_eval_metric=acuracy"],
            "trainer.best_checkpoint_eval_metric is acuracy, which is not measured.",
            "--set=trainer.best_checkpoint_eval_metric=accuracy",
        ),
        (
            ["task.validation_data.is_training=true"],
            "trainer.validation_steps is -1, for all batches, but the validation data has no end.",
            "--set=trainer.validation_steps=100",
        ),
        (
            ["task.train_data.is_training=false"],
            "trainer.train_steps is 500, but the training data ends after 9 batches.",
            "--set=trainer.train_steps=9",
        ),
        (
            ["runtime.distribution_strategy=mirrored", "task.train_data.global_batch_size=30"],
            "task.train_data.global_batch_size is 30. A batch of 30 examples cannot be split over 8 devices.",
            "--set=task.train_data.global_batch_size=24",
        ),
    ],
)
def test_what_does_not_fit_is_told_with_the_text_to_write(
    tmp_path: Path, settings: list[str], said: str, fix: str
) -> None:
    _, problems = planned(digits(*settings), tmp_path)
    assert len(problems) == 1
    assert said in problems[0]
    assert problems[0].endswith(fix)


def test_several_processes_are_not_told_to_take_one_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spans = property(lambda self: True, lambda self, value: None)
    monkeypatch.setattr(Placement, "spans_processes", spans, raising=False)
    _, (problem,) = planned(
        digits("runtime.distribution_strategy=mirrored", "task.train_data.global_batch_size=30"), tmp_path
    )
    assert "Take a multiple. Write:" in problem


def test_a_metric_that_the_task_may_add_on_the_host_is_not_refused(tmp_path: Path) -> None:
    report, problems = planned(small.params(**BEST | {"best_checkpoint_eval_metric": "host_accuracy"}), tmp_path)
    assert problems == []
    assert lines_of(report, "Metrics")[1:] == [
        "eval: accuracy, loss, and what the task adds on the host",
        "best: the highest eval/host_accuracy (the task has to add it on the host: this cannot be checked before)",
    ]


def test_what_a_run_resumes_from_is_compared_with_what_it_needs(tmp_path: Path) -> None:
    trellis.run_experiment(small.params(5), mode="train", model_dir=tmp_path)
    report, problems = planned(small.params(10), tmp_path)
    changed = "Changed since step 5: trainer.train_steps: 5 → 10."
    assert (lines_of(report, "Start"), problems) == ([f"resumes from {tmp_path / 'regular_5'}", changed], [])
    _, problems = planned(small.params(10, optimizer_config={"optimizer": {"type": "sgd"}}), tmp_path)
    assert problems[0].startswith(
        f"The run would resume from `{tmp_path / 'regular_5'}`, which holds another structure"
    )
    assert "float32[8,8] in the file, — here" in problems[0]
    report, problems = planned(small.params(10), tmp_path, mode="eval")
    assert (lines_of(report, "Start"), problems) == ([f"evaluates {tmp_path / 'regular_5'}"], [])
    assert lines_of(report, "Steps") == lines_of(report, "Disk") == []


def test_an_evaluation_that_is_longer_than_its_data_takes_all_of_it_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "but the validation data has 3 batches: all of them are taken."
    report, problems = planned(small.params(5, validation_steps=9), tmp_path / "run")
    assert problems == []
    assert said in report
    trellis.run_experiment(small.params(5, validation_steps=9), mode="train_and_eval", model_dir=tmp_path / "run")
    out = capsys.readouterr().out
    assert "trainer.validation_steps is 9 (" in out
    assert said in out


def test_a_run_that_ends_while_it_warms_up_is_told_so_and_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    warmup = {"type": "linear", "linear": {"warmup_steps": 5}}
    params = small.params(2, optimizer_config={"warmup": warmup})
    path = "trainer.optimizer_config.warmup.linear.warmup_steps"
    said = f"The run ends at step 2, while it warms up: {path} is 5 ("
    report, problems = planned(params, tmp_path / "run")
    assert problems == []
    assert any(line.startswith(said) for line in lines_of(report, "Start"))
    trellis.run_experiment(params, mode="train", model_dir=tmp_path / "run")
    assert said in capsys.readouterr().out
    assert small.files(tmp_path / "run") == ["regular_2"]


def test_a_run_goes_on_although_what_it_started_from_has_moved(tmp_path: Path) -> None:
    trellis.run_experiment(small.params(5), mode="train", model_dir=tmp_path / "first")
    start = {"init_checkpoint": str(tmp_path / "first")}
    trellis.run_experiment(small.params(5, task=start), mode="train", model_dir=tmp_path / "run")
    (tmp_path / "first").rename(tmp_path / "moved")
    _, problems = planned(small.params(10, task=start), tmp_path / "run")
    assert problems == []
    trellis.run_experiment(small.params(10, task=start), mode="train", model_dir=tmp_path / "run")
    assert small.files(tmp_path / "run") == ["regular_10", "regular_5"]
    # Another run would need it.
    with pytest.raises(ConfigError, match="task.init_checkpoint names a checkpoint that is not there"):
        trellis.run_experiment(small.params(10, task=start), mode="train", model_dir=tmp_path / "other")


def test_a_warm_start_is_compared_with_the_model_without_starting(tmp_path: Path) -> None:
    trellis.run_experiment(small.params(5), mode="train", model_dir=tmp_path / "small")
    path = f"task.init_checkpoint={tmp_path / 'small'}"
    _, problems = planned(digits(path), tmp_path / "digits")
    assert len(problems) == 1
    assert "lacks what the model takes:" in problems[0]
    assert "model_params/encoder/kernel: float32[8,8] in the file, float32[64,64] here" in problems[0]
    params = small.params(task={"init_checkpoint": str(tmp_path / "small")})
    report, problems = planned(params, tmp_path / "again")
    assert (lines_of(report, "Start"), problems) == ([f"step 0, with parameters from {tmp_path / 'small'}"], [])


def test_files_that_do_not_fit_on_the_disk_and_arrays_that_do_not_fit_on_a_device_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 1000

    monkeypatch.setattr("trellis.experiments.preflight.shutil.disk_usage", lambda path: Usage)
    monkeypatch.setattr("trellis.experiments.preflight.device_memory", lambda: 2000)
    _, problems = planned(small.params(), tmp_path / "not/yet")
    assert problems[0].startswith("The run holds 2.2 kB on each device, which has 1.9 kB.")
    assert problems[1].startswith("The checkpoint files take up to 6.3 kB (5 of 1.2 kB), but where `")
    assert "there are 1000 B left." in problems[1]


def test_a_run_is_refused_for_the_same_reasons_before_anything_is_written(tmp_path: Path) -> None:
    params = digits("trainer.best_checkpoint_eval_metric=acuracy", "task.train_data.is_training=false")
    with pytest.raises(ConfigError, match="2 problems in the configuration"):
        trellis.run_experiment(params, mode="train_and_eval", model_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_directory_that_cannot_be_read_again_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "rate[0.1]"
    params = small.params(10)
    monkeypatch.setattr("trellis.extensions.checkpoint_storage._OPEN_FILES", tmp_path / "not Linux")
    _, (problem,) = planned(params, directory)
    assert r"has one of \ * ? [ in it" in problem
    with pytest.raises(ConfigError, match=r"has one of \\ \* \? \[ in it"):
        trellis.run_experiment(params, mode="train", model_dir=directory)
    assert not directory.exists()


def test_data_from_an_iterator_is_looked_at_without_losing_a_batch(tmp_path: Path) -> None:
    class IteratorTask(small.SmallTask):
        def build_inputs(self, params: Any, input_context: Any = None) -> Any:
            stream = super().build_inputs(params, input_context)
            return map(stream.batch, range(100)) if params.is_training else stream

    plain, _ = trellis.run_experiment(small.params(5), mode="train_and_eval", model_dir=tmp_path / "plain")
    task = IteratorTask(small.SmallConfig())
    other, _ = trellis.run_experiment(
        small.params(5), task=task, mode="train_and_eval", model_dir=tmp_path / "iterated"
    )
    small.tiny.assert_equal(plain.params, other.params)


def test_an_error_in_a_users_step_says_what_was_being_traced(tmp_path: Path) -> None:
    class WrongTask(small.SmallTask):
        def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> Any:
            return model_outputs @ model_outputs

    with pytest.raises(TypeError) as raised:
        trellis.run_experiment(
            small.params(5), task=WrongTask(small.SmallConfig()), mode="train", model_dir=tmp_path / "run"
        )
    note = "That was while tracing a training step with a batch of (float32[16,8], int32[16])."
    assert note in raised.value.__notes__


def test_a_task_with_an_optimizer_of_its_own_needs_no_optimizer_config(tmp_path: Path) -> None:
    import optax

    class OwnOptimizer(small.SmallTask):
        @classmethod
        def create_optimizer(cls, optimizer_config: Any, **options: Any) -> Any:
            return optax.sgd(0.1)

    params = small.params(5)
    params.override({"trainer": {"optimizer_config": {"optimizer": {"type": None}, "learning_rate": {"type": None}}}})
    trellis.run_experiment(params, task=OwnOptimizer(params.task), mode="train", model_dir=tmp_path)
    assert small.files(tmp_path) == ["regular_5"]


def test_problems_in_a_file_are_corrected_in_the_language_of_the_file(tmp_path: Path) -> None:
    Path("odd.yaml").write_text("task:\n  train_data:\n    global_batch_size: 30\ntrainer:\n  n_microbatches: 4\n")
    with pytest.raises(ConfigError) as raised:
        resolve("digits/classifier", config_file=["odd.yaml"], mode="train")
    assert str(raised.value) == (
        "odd.yaml:3:24: task.train_data.global_batch_size is 30, which cannot be cut into trainer.n_microbatches=4 "
        "equal parts.\n"
        "      3 |     global_batch_size: 30\n"
        "        |                        ^^\n"
        "  Write:\n"
        "      global_batch_size: 28"
    )


def test_an_interval_of_no_steps_is_a_problem_and_no_error(tmp_path: Path) -> None:
    _, problems = planned(digits("trainer.summary_interval=0"), tmp_path)
    assert problems[0].startswith("--set: trainer.summary_interval is 0.")


@pytest.mark.parametrize("rate", [-0.1, 1, 3.4])
def test_a_share_to_be_dropped_is_a_share(rate: float, tmp_path: Path) -> None:
    _, (problem,) = planned(digits(f"task.dropout_rate={rate}"), tmp_path)
    assert problem.startswith(f"--set: task.dropout_rate is {rate:g}.")
    assert problem.endswith("It is the share that is dropped: from 0 to below 1.")


def test_a_run_without_checkpoint_files_is_planned_as_one(tmp_path: Path) -> None:
    report, problems = planned(small.params(10, checkpoint_interval=0), tmp_path)
    assert not problems
    said = "no checkpoint files are written. The run cannot be resumed"
    assert report.count(said) == 1
    assert "Disk       no checkpoint files\n" in report
    assert "regular_" not in report
    assert "steps: training metrics, evaluation\n" in report


def test_a_plan_times_a_few_batches_and_compares_them_with_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, step = lines_of(planned(digits(), tmp_path)[0], "Input")
    assert re.fullmatch(r"a batch takes [\d.]+ (µs|ms) to make on this machine", made)
    assert step.endswith("FLOP; the peak of cpu is not known, and so not how long it waits for input")
    monkeypatch.setattr("trellis.experiments.plan.chip_peak", lambda kind: Peak("H200", 989e12))
    _, step = lines_of(planned(digits(), tmp_path)[0], "Input")
    assert re.search(r"FLOP, 0\.00 µs at 989 TFLOP/s \(H200, bfloat16\): if it came to that peak, it would wait", step)
    monkeypatch.setattr("trellis.experiments.plan.chip_peak", lambda kind: Peak("Abacus", 1.0))
    _, step = lines_of(planned(digits(), tmp_path)[0], "Input")
    assert step.endswith("at 1e-12 TFLOP/s (Abacus, bfloat16): if it came to that peak, it would not wait for input")
