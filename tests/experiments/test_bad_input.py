"""Wrong configs, files and flags, each with the whole message that its user sees.

Set the environment variable UPDATE_GOLDEN to write the messages anew; then read them.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from trellis.config import Config
from trellis.errors import ConfigError
from trellis.experiments import ExperimentConfig, experiment as experiment_module, register_config_factory, resolve
from trellis.registry import Registry
from trellis.tasks import TaskConfig
from trellis.trainer import TrainerConfig

GOLDEN = Path(__file__).parent.parent / "golden" / "bad_configs"


@dataclass
class HeadConfig(Config):
    inner_dim: int = 0
    name: str | None = None


@dataclass
class ToyModelConfig(Config):
    num_classes: int = 2
    heads: list[HeadConfig] = field(default_factory=list)


@dataclass
class ToyTaskConfig(TaskConfig):
    model: ToyModelConfig = ToyModelConfig()
    metric_type: str = "accuracy"
    label_name: tuple[str, str] | None = None


@dataclass(frozen=True)
class Wrong:
    """A command line with something wrong in it."""

    files: dict[str, str] = field(default_factory=dict)
    config_file: tuple[str, ...] | None = None
    params_override: str = ""
    settings: tuple[str, ...] = ()
    experiment: str = "toy/one"


def override(text: str) -> Wrong:
    return Wrong(params_override=text)


def file(text: str) -> Wrong:
    return Wrong(files={"bad.yaml": text})


CASES = {
    "typo_in_flag": override("trainer.train_step=10"),
    "typo_in_flag_deep": override("trainer.optimizer_config.learning_rate.polynomial.inital_learning_rate=1e-4"),
    "typo_below_none": override("trainer.optimizer_config.ema.average_deca=0.9"),
    "typo_in_group": override("trainr.train_steps=10"),
    "name_from_elsewhere": override("train_steps=10"),
    "group_left_out": override("trainer.learning_rate.cosine.decay_steps=10,trainer.max_to_keep=1"),
    "group_made_up": override("model_params.num_classes=3"),
    "name_like_nothing": override("quux=1"),
    "hyphen_in_name": override("trainer.train-steps=10"),
    "camel_case": override("trainer.trainSteps=10"),
    "word_for_number": override("trainer.train_steps=ten"),
    "fraction_for_whole": override("trainer.train_steps=1.5"),
    "quoted_number": override("trainer.train_steps='10'"),
    "number_for_flag": override("task.train_data.is_training=1"),
    "misspelt_true": override("task.train_data.is_training=ture"),
    "null_for_text": override("task.init_checkpoint=None"),
    "null_for_number": override("trainer.max_to_keep=null"),
    "scalar_for_config": override("trainer=3"),
    "scalar_for_optional_config": override("trainer.optimizer_config.ema=0.9"),
    "text_for_list": override("trainer.optimizer_config.optimizer.adamw.exclude_from_weight_decay=bias"),
    "wrong_item_in_list": override("trainer.optimizer_config.learning_rate.stepwise.boundaries=[1,x,3]"),
    "wrong_length": override("task.label_name=['a']"),
    "unknown_optimizer": override("trainer.optimizer_config.optimizer.type=adan"),
    "unknown_strategy": override("runtime.distribution_strategy=miror"),
    "unknown_precision": override("runtime.mixed_precision_dtype=fp16"),
    "wrong_loss_scale": override("runtime.loss_scale=automatic"),
    "wrong_comparison": override("trainer.best_checkpoint_metric_comp=max"),
    "unquoted_comma": override("task.train_data.input_path=a*,b*,trainer.train_steps=10"),
    "unclosed_quote": override("task.metric_type='f1"),
    "bracket_in_text": override("task.train_data.input_path=part-[0-9].tfrecord"),
    "nested_list": override("trainer.optimizer_config.learning_rate.stepwise.values=[[1,2],[3]]"),
    "mapping_with_comma": override("task.model={num_classes: 3, heads: []}"),
    "missing_item": override("trainer.optimizer_config.learning_rate.stepwise.values[1]=0.1"),
    "leading_blank": override(" trainer.train_steps=10"),
    "digit_first": override("1trainer=10"),
    "no_equals_sign": override("trainer.train_steps"),
    "value_and_fields": override("trainer.train_steps=1,trainer=2"),
    "two_commas": override("trainer.train_steps=1,,trainer.max_to_keep=2"),
    "setting_without_value": Wrong(settings=("trainer.train_steps",)),
    "setting_with_typo": Wrong(settings=("task.model.num_class=3",)),
    "typo_in_file": file("trainer:\n  train_step: 10\n"),
    "typo_in_file_of_group": file("task:\n  trian_data:\n    input_path: x\n    global_batch_size: 3\n"),
    "wrong_level_in_file": file("task:\n  num_classes: 3\n"),
    "wrong_type_in_file": file("trainer:\n  train_steps: soon\n  max_to_keep: '5'\n"),
    "wrong_list_in_file": file("task:\n  model:\n    heads:\n    - inner_dim: 3\n      nam: a\n    - inner_dim: x\n"),
    "twice_in_file": file("trainer:\n  train_steps: 1\n  max_to_keep: 2\n  train_steps: 3\n"),
    "tab_in_file": file("trainer:\n\ttrain_steps: 1\n"),
    "bracket_in_file": file("trainer:\n  train_steps: [1, 2\ntask:\n  name: x\n"),
    "list_for_file": file("- trainer\n- task\n"),
    "text_for_file": file("just some words\n"),
    "object_in_file": file("task:\n  name: !!python/object/apply:os.getcwd []\n"),
    "no_such_file": Wrong(files={"good.yaml": ""}, config_file=("god.yaml",)),
    "no_such_directory": Wrong(config_file=("nowhere/good.yaml",)),
    "directory_for_file": Wrong(files={"some.yaml": ""}, config_file=(".",)),
    "restriction": Wrong(experiment="toy/restricted"),
    "restriction_after_override": Wrong(experiment="toy/restricted", settings=("trainer.train_steps=3",)),
    "all_at_once": Wrong(
        files={"one.yaml": "task:\n  metric: f1\n", "two.yaml": "trainer: {max_to_keep: few}\n"},
        config_file=("one.yaml", "two.yaml"),
        params_override="runtime.num_gpu=2,task.train_data.input_path=a,b",
        settings=("trainer.validation_steps=all",),
        experiment="toy/restricted",
    ),
}


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    experiment_module.register_experiments(())  # not into what is put in its place
    monkeypatch.setattr(experiment_module, "_experiments", Registry("experiment"))
    monkeypatch.chdir(tmp_path)

    @register_config_factory("toy/one")
    def one() -> ExperimentConfig:
        return ExperimentConfig(task=ToyTaskConfig(), trainer=TrainerConfig(train_steps=100))

    @register_config_factory("toy/restricted")
    def restricted() -> ExperimentConfig:
        return ExperimentConfig(
            task=ToyTaskConfig(),
            restrictions=["task.train_data.is_training != None", "trainer.train_steps >= trainer.steps_per_loop"],
        )


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_told_with_place_and_correction(name: str) -> None:
    wrong = CASES[name]
    for path, text in wrong.files.items():
        Path(path).write_text(text)
    with pytest.raises(ConfigError) as caught:
        resolve(
            wrong.experiment,
            config_file=list(wrong.files) if wrong.config_file is None else wrong.config_file,
            params_override=wrong.params_override,
            settings=wrong.settings,
        )
    golden = GOLDEN / f"{name}.txt"
    if "UPDATE_GOLDEN" in os.environ:
        golden.write_text(f"{caught.value}\n")
    assert f"{caught.value}\n" == golden.read_text()


def test_every_message_belongs_to_a_case() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(CASES)
