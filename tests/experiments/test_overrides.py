"""From factory, files and flags to the config that runs."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from trellis.config import Config, origin_of, without_effect
from trellis.errors import ArgumentError, ConfigError, RegistryError
from trellis.experiments import (
    ExperimentConfig,
    diff_configs,
    experiment as experiment_module,
    get_exp_config,
    list_experiments,
    read_params,
    register_config_factory,
    resolve,
    show_config,
)
from trellis.optimizers import OptimizationConfig
from trellis.registry import Registry
from trellis.tasks import TaskConfig
from trellis.trainer import TrainerConfig


@dataclass
class GardenConfig(Config):
    beds: int = 3


@dataclass
class GardenTaskConfig(TaskConfig):
    model: GardenConfig = GardenConfig()
    season: str = "spring"


@pytest.fixture(autouse=True)
def garden(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment_module.register_experiments(())  # not into what is put in its place
    monkeypatch.setattr(experiment_module, "_experiments", Registry("experiment"))

    @register_config_factory("garden/plain")
    def plain() -> ExperimentConfig:
        """Grows what there is.

        Slowly.
        """
        return ExperimentConfig(
            task=GardenTaskConfig(),
            trainer=TrainerConfig(
                train_steps=30, optimizer_config=OptimizationConfig({"optimizer": {"type": "adamw"}})
            ),
        )

    @register_config_factory("garden/strict")
    def strict() -> ExperimentConfig:
        return ExperimentConfig(restrictions=["task.train_data.is_training != None"])


def test_a_factory_is_called_anew_each_time() -> None:
    first, second = get_exp_config("garden/plain"), get_exp_config("garden/plain")
    assert first == second
    assert first is not second


def test_an_unknown_experiment_suggests_the_nearest() -> None:
    with pytest.raises(RegistryError, match="There is no experiment 'garden/plan'. Did you mean garden/plain?"):
        get_exp_config("garden/plan")


def test_a_factory_that_returns_no_config_is_told() -> None:
    register_config_factory("garden/none")(lambda: None)  # type: ignore[type-var]
    with pytest.raises(ConfigError, match="The factory of experiment 'garden/none' returned None."):
        get_exp_config("garden/none")


def test_later_layers_win_and_every_value_knows_its_layer(tmp_path: Path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("task:\n  season: summer\n  model: {beds: 4}\ntrainer: {max_to_keep: 1, train_steps: 1}\n")
    second.write_text("task:\n  season: autumn\n")
    config = resolve(
        "garden/plain",
        config_file=[str(first), str(second)],
        params_override="trainer.max_to_keep=2,trainer.train_steps=2",
        settings=["trainer.train_steps=3"],
    )
    origins = {
        path: str(origin_of(config, path))
        for path in (
            "task.season",
            "task.model.beds",
            "trainer.max_to_keep",
            "trainer.train_steps",
            "trainer.optimizer_config.optimizer.type",
            "trainer.validation_steps",
        )
    }
    assert origins == {
        "task.season": f"{second}:2",
        "task.model.beds": f"{first}:3",
        "trainer.max_to_keep": "--params_override",
        "trainer.train_steps": "--set",
        "trainer.optimizer_config.optimizer.type": "factory garden/plain",
        "trainer.validation_steps": "default",
    }
    assert (config.trainer.max_to_keep, config.trainer.train_steps) == (2, 3)


def test_the_result_is_locked() -> None:
    config = resolve("garden/plain")
    with pytest.raises(ConfigError, match="is locked"):
        config.trainer.train_steps = 5


def test_restrictions_are_checked_after_the_last_layer() -> None:
    with pytest.raises(ConfigError, match="'task.train_data.is_training != None' does not hold"):
        resolve("garden/strict")
    assert resolve("garden/strict", params_override="task.train_data.is_training=true").task.train_data.is_training


def test_words_that_yaml_takes_for_something_else_are_text_in_text_fields() -> None:
    config = resolve("garden/plain", params_override="runtime.distribution_strategy=off,task.season=no,task.name=None")
    assert (config.runtime.distribution_strategy, config.task.name) == ("off", None)
    assert config.task.as_dict()["season"] == "no"


def test_a_config_that_is_none_is_made_by_an_override_and_its_names_are_checked() -> None:
    config = resolve("garden/plain", params_override="trainer.optimizer_config.ema.average_decay=0.5")
    ema = config.trainer.optimizer_config.ema
    assert ema is not None
    assert (ema.average_decay, ema.dynamic_decay) == (0.5, True)
    with pytest.raises(ConfigError, match="trainer.optimizer_config.ema.bogus is not a field of EMAConfig"):
        resolve("garden/plain", params_override="trainer.optimizer_config.ema.bogus=1")


def test_what_ran_can_be_run_again_from_its_yaml(tmp_path: Path) -> None:
    config = resolve("garden/plain", params_override="task.model.beds=9,runtime.loss_scale=dynamic,task.season='off'")
    path = tmp_path / "params.yaml"
    path.write_text(config.as_yaml())
    assert resolve("garden/plain", config_file=[str(path)]) == config


def test_fields_without_effect_are_accepted_and_listed() -> None:
    config = resolve("garden/plain", params_override="runtime.enable_xla=true,trainer.train_tf_function=false")
    assert [idle.path for idle in without_effect(config)] == ["trainer.train_tf_function", "runtime.enable_xla"]


def test_show_is_yaml_with_the_origin_of_every_value(tmp_path: Path) -> None:
    config = resolve("garden/plain", params_override="task.model.beds=9,runtime.enable_xla=yes")
    text = show_config(config)
    assert "    beds: 9" in text
    lines = {line.split("#")[0].strip(): line.split("# ")[1] for line in text.splitlines() if "#" in line}
    assert lines["beds: 9"] == "--params_override"
    assert lines["train_steps: 30"] == "factory garden/plain"
    assert lines["enable_xla: true"] == "--params_override; no effect: JAX compiles every step"
    assert lines["num_packs: 1"] == "no effect"
    path = tmp_path / "shown.yaml"
    path.write_text(text)
    assert resolve("garden/plain", config_file=[str(path)]) == config


def test_diff_tells_values_and_origins(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(resolve("garden/plain", params_override="task.model.beds=9").as_yaml())
    told = " ".join(diff_configs("garden/plain", str(path)).replace(str(path), "params.yaml").split())
    assert told == "task.model.beds garden/plain 3 (default) params.yaml 9 (params.yaml:5)"
    assert diff_configs("garden/plain", "garden/plain") == ""


def test_experiments_are_listed_with_their_first_line() -> None:
    assert list_experiments() == "garden/plain   Grows what there is.\ngarden/strict\n"


def test_families_of_experiments_are_parted_by_an_empty_line() -> None:
    register_config_factory("park/wide")(lambda: ExperimentConfig())
    assert list_experiments() == "garden/plain   Grows what there is.\ngarden/strict\n\npark/wide\n"


def test_configs_are_resolved_and_shown_without_jax() -> None:
    program = (
        "import sys; from trellis.experiments import ExperimentConfig, register_config_factory, resolve, show_config; "
        "register_config_factory('a')(ExperimentConfig); show_config(resolve('a')); "
        "print([name for name in ('jax', 'numpy', 'flax', 'gin') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("content", ["", "task: {}\ntrainer: {}\n"])
def test_the_config_of_a_run_that_was_cut_short_is_not_taken_for_another(tmp_path: Path, content: str) -> None:
    (tmp_path / "params.yaml").write_text(content)
    with pytest.raises(ArgumentError, match=r"params.yaml` has no .*runtime, as that of a run has: it was cut short"):
        read_params(tmp_path)


@pytest.mark.parametrize("text", ["", "# only a remark\n"])
def test_a_config_file_that_sets_nothing_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "empty.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"empty.yaml: The config file sets nothing: it is empty"):
        resolve("garden/plain", config_file=[str(file)])


OPTIMIZER = "trainer.optimizer_config.optimizer"
TWO_PARTS = "trainer: {optimizer_config: {optimizer: {type: adam,\n  adamw: {weight_decay_rate: 0.1}}}}"


def test_a_part_that_is_not_chosen_is_refused_at_its_line(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(TWO_PARTS)
    with pytest.raises(ConfigError) as caught:
        resolve("garden/plain", config_file=[str(file)])
    message = " ".join(str(caught.value).split())
    assert f"two.yaml:2:30: {OPTIMIZER}.adamw is set, but {OPTIMIZER}.type is adam: it has no effect." in message
    assert f"Choose it ({OPTIMIZER}.type=adamw), or set {OPTIMIZER}.adam instead." in message


def test_a_part_that_a_flag_sets_has_to_be_chosen() -> None:
    with pytest.raises(ConfigError, match=rf"{OPTIMIZER}\.lamb is set, but {OPTIMIZER}\.type is adamw"):
        resolve("garden/plain", params_override=f"{OPTIMIZER}.lamb.beta_1=0.8")
    warmup = "trainer.optimizer_config.warmup"
    with pytest.raises(ConfigError, match=rf"{warmup}\.linear is set, but {warmup}\.type is null"):
        resolve("garden/plain", settings=[f"{warmup}.linear.warmup_steps=3"])


def test_another_choice_may_come_later_than_the_part(tmp_path: Path) -> None:
    file = tmp_path / "adamw.yaml"
    file.write_text("trainer: {optimizer_config: {optimizer: {type: adamw, adamw: {weight_decay_rate: 0.1}}}}")
    other = tmp_path / "adam.yaml"
    other.write_text("trainer: {optimizer_config: {optimizer: {type: adam}}}")
    by_flag = resolve("garden/plain", config_file=[str(file)], params_override=f"{OPTIMIZER}.type=adam")
    by_file = resolve("garden/plain", config_file=[str(file), str(other)])
    assert by_flag == by_file
    # What ran can be run again, though it holds what was not chosen.
    params = tmp_path / "params.yaml"
    params.write_text(f"# Experiment: garden/plain\n{by_flag.as_yaml()}")
    assert resolve("garden/plain", config_file=[str(params)]) == by_flag
