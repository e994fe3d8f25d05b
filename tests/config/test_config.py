"""Config: construction, assignment, override, replace, lock."""

import copy
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field, make_dataclass
from typing import Any, ClassVar, Literal, Optional

import pytest

from trellis.config import Config, OneOfConfig, bind
from trellis.errors import ArgumentError, ConfigError, RegistryError


@dataclass
class WheelConfig(Config):
    size: int = 26
    label: str = "plain"


@dataclass
class SpokedWheelConfig(WheelConfig):
    tension: float = 1.5


@dataclass
class LampConfig(Config):
    bright: bool = False


@dataclass
class BikeConfig(Config):
    front: WheelConfig = WheelConfig()
    spare: Optional[WheelConfig] = None  # noqa: UP045
    bags: list[WheelConfig] = field(default_factory=list)
    pair: tuple[WheelConfig, ...] = (SpokedWheelConfig(), WheelConfig())
    lamps: dict[str, LampConfig] = field(default_factory=dict)
    gears: int | None = None
    weight: float = 12.0
    kind: Literal["road", "city"] = "city"
    scale: Literal["dynamic"] | float | None = None
    notes: Any = None
    stops: tuple[int, str] = (1, "a")
    tags: Sequence[str] = ()
    ratios: list[float] = field(default_factory=lambda: [1.0, 2.0])


def test_nested_mappings_become_the_annotated_classes() -> None:
    bike = BikeConfig(
        front={"size": 28},  # type: ignore[arg-type]
        spare={"label": "old"},  # type: ignore[arg-type]
        bags=[{"size": 1}, {"size": 2}],  # type: ignore[list-item]
        lamps={"rear": {"bright": True}},  # type: ignore[dict-item]
    )
    assert bike.front == WheelConfig(size=28)
    assert bike.spare == WheelConfig(label="old")
    assert bike.bags == [WheelConfig(size=1), WheelConfig(size=2)]
    assert bike.lamps == {"rear": LampConfig(bright=True)}


def test_a_mapping_given_first_is_merged_over_the_defaults_and_keeps_their_classes() -> None:
    bike = BikeConfig({"pair": [{"tension": 2}, {"size": 20}], "front": {"size": 28}}, gears=7)
    assert bike.pair == (SpokedWheelConfig(tension=2.0), WheelConfig(size=20))
    assert (bike.front.size, bike.front.label, bike.gears) == (28, "plain", 7)


def test_a_config_as_a_default_is_not_shared() -> None:
    first, second = BikeConfig(), BikeConfig()
    first.front.size = 20
    assert second.front.size == 26
    assert BikeConfig().front.size == 26


def test_a_config_is_copied_on_its_way_into_another() -> None:
    wheel = SpokedWheelConfig(tension=3.0)
    bike = BikeConfig(front=wheel)
    wheel.tension = 4.0
    assert bike.front == SpokedWheelConfig(tension=3.0)


def test_numbers_are_kept_in_the_type_of_their_field() -> None:
    bike = BikeConfig(weight=9)
    assert (bike.weight, type(bike.weight)) == (9.0, float)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("gears", "seven", "gears takes a whole number, not 'seven'."),
        ("gears", 7.5, "gears takes a whole number, not 7.5."),
        ("gears", True, "gears takes a whole number, not True."),
        ("weight", "heavy", "weight takes a number, not 'heavy'."),
        ("weight", None, "weight takes a number, not None."),
        ("kind", "cities", "kind takes one of road, city, not 'cities'."),
        ("scale", "static", "scale takes dynamic or a number or null, not 'static'."),
        ("front", 5, "front takes the fields of WheelConfig, not 5."),
        ("front", None, "front takes the fields of WheelConfig, not None."),
        ("front", LampConfig(), "front takes the fields of WheelConfig, not a LampConfig."),
        ("bags", 3, "bags takes a list, each the fields of WheelConfig, not 3."),
        ("bags", [3], r"bags\[0\] takes the fields of WheelConfig, not 3."),
        ("lamps", {"rear": 3}, "lamps.rear takes the fields of LampConfig, not 3."),
        ("stops", [1], "stops takes a list of 2: a whole number, text, not"),
        ("stops", ["x", "y"], r"stops\[0\] takes a whole number, not 'x'."),
        ("ratios", [1, "x"], r"ratios\[1\] takes a number, not 'x'."),
        ("notes", {1, 2}, "notes takes plain data, not"),
        ("notes", len, "notes takes plain data, not"),
        ("tags", b"raw", "tags takes a list, each text, not b'raw'."),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_everywhere(name: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BikeConfig(**{name: value})  # type: ignore[arg-type]
    bike = BikeConfig()
    with pytest.raises(ConfigError, match=message):
        setattr(bike, name, value)
    with pytest.raises(ConfigError, match=message):
        bike.override({name: value})
    assert bike == BikeConfig()


def test_construction_tells_all_problems_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        BikeConfig({"spare": {"sise": 1}}, gears="x", weigth=3, front={"label": 4})  # type: ignore[call-arg, arg-type]
    assert str(caught.value) == (
        "4 problems in the configuration\n\n"
        "weigth is not a field of BikeConfig.\n"
        "  Did you mean weight? Write:\n"
        "      weight = 3\n\n"
        "front.label takes text, not 4.\n"
        "  Write:\n"
        "      front.label = '4'\n\n"
        "gears takes a whole number, not 'x'.\n\n"
        "spare.sise is not a field of WheelConfig.\n"
        "  Did you mean spare.size? Write:\n"
        "      spare.size = 1"
    )
    assert len(caught.value.problems) == 4


def test_an_unknown_name_is_refused_at_every_depth_also_below_none() -> None:
    bike = BikeConfig()
    for wrong in (
        {"bell": 1},
        {"front": {"bell": 1}},
        {"spare": {"bell": 1}},
        {"bags": [{"bell": 1}]},
        {"pair": [{"bell": 1}, {}]},
        {"lamps": {"rear": {"bell": 1}}},
    ):
        with pytest.raises(ConfigError, match="bell is not a field of"):
            bike.override(wrong)
    with pytest.raises(ConfigError, match="bell is not a field of BikeConfig"):
        bike.bell = 1  # type: ignore[attr-defined]
    assert bike == BikeConfig()


def test_below_an_unknown_name_every_name_is_told_also_one_that_is_no_text() -> None:
    with pytest.raises(ConfigError) as caught:
        BikeConfig().override({"handlebar": {"tension": 1, 2: 3}})
    first, second = (problem.partition(": ")[2] for problem in caught.value.problems)
    assert first.startswith("handlebar.tension is not a field of BikeConfig.\n  Did you mean pair[0].tension? Write:")
    assert second == "handlebar.2 is not a field of BikeConfig."


def test_reading_a_name_that_is_none_tells_the_nearest() -> None:
    with pytest.raises(AttributeError, match="BikeConfig has no field 'gear'. Did you mean gears?"):
        BikeConfig().gear  # type: ignore[attr-defined]  # noqa: B018


def test_override_changes_everything_or_nothing() -> None:
    bike = BikeConfig()
    with pytest.raises(ConfigError, match="zzz is not a field"):
        bike.override({"gears": 5, "front": {"size": 20, "zzz": 1}, "pair": [{"size": 1}, {"size": 2}]})
    assert bike == BikeConfig()


def test_override_merges_into_the_configs_that_are_there() -> None:
    bike = BikeConfig(front=SpokedWheelConfig(tension=2.0))
    front = bike.front
    bike.override({"front": {"tension": 3, "size": 20}, "spare": {"size": 1}})
    assert bike.front is front
    assert front == SpokedWheelConfig(size=20, tension=3.0)
    assert bike.spare == WheelConfig(size=1)


def test_override_takes_a_config_as_well() -> None:
    wheel = SpokedWheelConfig()
    wheel.override(WheelConfig(size=20, label="new"))
    assert wheel == SpokedWheelConfig(size=20, label="new")


def test_a_config_given_for_a_config_replaces_it_with_its_own_class() -> None:
    bike = BikeConfig()
    bike.override({"front": SpokedWheelConfig(tension=9.0)})
    assert bike.front == SpokedWheelConfig(tension=9.0)


def test_a_mapping_assigned_to_a_config_is_merged() -> None:
    bike = BikeConfig(front=SpokedWheelConfig(tension=2.0))
    bike.front = {"size": 20}  # type: ignore[assignment]
    assert bike.front == SpokedWheelConfig(size=20, tension=2.0)


def test_a_list_of_mappings_is_merged_if_as_long_and_replaces_otherwise() -> None:
    bike = BikeConfig()
    bike.override({"pair": [{"tension": 3}, {"size": 1}]})
    assert list(bike.pair) == [SpokedWheelConfig(tension=3.0), WheelConfig(size=1)]
    bike.override({"pair": [{"size": 5}]})
    assert list(bike.pair) == [WheelConfig(size=5)]
    bike.override({"pair": []})
    assert list(bike.pair) == []


def test_sequences_become_the_type_of_their_field() -> None:
    bike = BikeConfig(tags=["a"], stops=[2, "b"], ratios=(3, 4))  # type: ignore[arg-type]
    assert (bike.tags, bike.stops, bike.ratios) == (("a",), (2, "b"), [3.0, 4.0])


def test_lists_and_mappings_do_not_change_in_place() -> None:
    bike = BikeConfig(lamps={"rear": LampConfig()})
    for change in (
        lambda: bike.ratios.append(3.0),
        lambda: bike.ratios.__setitem__(0, 3.0),
        lambda: bike.ratios.sort(),
        lambda: bike.lamps.update(front=LampConfig()),
        lambda: bike.lamps.pop("rear"),
    ):
        with pytest.raises(ConfigError, match="does not change in place"):
            change()
    assert bike.ratios == [1.0, 2.0]


def test_a_mapping_of_configs_is_merged_by_name() -> None:
    bike = BikeConfig(lamps={"rear": LampConfig()})
    bike.override({"lamps": {"front": {"bright": True}}})
    assert bike.lamps == {"rear": LampConfig(), "front": LampConfig(bright=True)}


def test_the_published_internals_are_no_keys() -> None:
    for key in ("_locked", "_restrictions", "restrictions", "default_params"):
        with pytest.raises(ConfigError, match=f"{key} is not a field of WheelConfig"):
            WheelConfig().override({key: 1})


def test_a_field_cannot_be_deleted() -> None:
    bike = BikeConfig()
    with pytest.raises(ConfigError, match="BikeConfig.gears cannot be deleted. Set it to its default instead."):
        del bike.gears


def test_equality_needs_the_same_class_and_there_is_no_hash() -> None:
    assert WheelConfig() == WheelConfig()
    assert WheelConfig() != SpokedWheelConfig()
    with pytest.raises(TypeError, match="a WheelConfig can change, so it has no hash"):
        hash(WheelConfig())
    assert repr(WheelConfig(size=1)) == "WheelConfig(size=1, label='plain')"


def test_copies_and_pickles_are_equal() -> None:
    bike = BikeConfig(bags=[WheelConfig(size=3)], lamps={"rear": LampConfig()})
    assert copy.deepcopy(bike) == bike
    assert pickle.loads(pickle.dumps(bike)) == bike


def test_a_class_without_the_decorator_is_told() -> None:
    class Plain(Config):
        size: int = 1

    with pytest.raises(ConfigError, match="Plain declares fields but is not a dataclass. Write @dataclass above it."):
        Plain()


def test_an_annotation_that_a_config_cannot_hold_is_told() -> None:
    @dataclass
    class Odd(Config):
        raw: bytes = b""

    with pytest.raises(ConfigError, match="Odd.raw is annotated <class 'bytes'>, which a config cannot hold"):
        Odd()


NO_METHODS = {"type", "default_params", "restrictions"}


@pytest.mark.parametrize("name", [name for name in dir(OneOfConfig) if name[0] != "_" and name not in NO_METHODS])
def test_a_field_that_would_hide_a_method_is_told(name: str) -> None:
    hiding = make_dataclass("Hiding", [(name, bool, False)], bases=(OneOfConfig,))
    with pytest.raises(ConfigError, match=f"Hiding.{name} hides a method of that name"):
        hiding()


def test_a_default_that_can_be_called_is_no_method() -> None:
    holding = make_dataclass("Holding", [("function", Any, len)], bases=(Config,))
    with pytest.raises(ConfigError, match="function takes plain data, not <built-in function len>"):
        holding()


def test_a_typo_is_told_without_making_a_config_that_is_not_there() -> None:
    def refuse(self: Config, *arguments: object) -> None:
        raise ValueError("a user's own check")

    inner = make_dataclass("Inner", [("x", int, 1)], bases=(Config,), namespace={"__post_init__": refuse})
    outer = make_dataclass("Outer", [("inner", inner | None, None), ("size", int, 1)], bases=(Config,))()
    with pytest.raises(ConfigError, match=r"siize is not a field of Outer[\s\S]*Did you mean size\?"):
        outer.override({"siize": 2})
    with pytest.raises(ConfigError, match=r"qqq is not a field of Outer"):
        outer.override({"qqq": 2})


def test_a_plain_config_has_no_fields_to_set() -> None:
    with pytest.raises(ConfigError, match="a is not a field of Config.\n  Config has no fields. A config of your own"):
        Config({"a": 1})


@dataclass
class EndConfig(Config):
    rate: float = 0.5
    steps: int = 10


@dataclass
class NamedEndConfig(EndConfig):
    note: ClassVar[str] = "no field"
    name: str = ""
    size: int = 1


def test_arguments_by_position_are_the_fields_that_a_class_declares_itself() -> None:
    assert EndConfig.from_args(0.1, 5) == EndConfig(rate=0.1, steps=5)
    assert EndConfig.from_args(0.1, steps=5) == EndConfig(rate=0.1, steps=5)
    assert NamedEndConfig.from_args("a", 3, rate=0.1) == NamedEndConfig(name="a", size=3, rate=0.1)
    assert EndConfig.from_args() == EndConfig()


def test_arguments_of_from_args_that_have_no_place_are_refused() -> None:
    message = "NamedEndConfig.from_args got 3 values by position, but the class declares 2 fields itself: name, size"
    with pytest.raises(ConfigError, match=message):
        NamedEndConfig.from_args("a", 3, 0.1)
    with pytest.raises(ConfigError, match="EndConfig.from_args got rate by position and by name. Give it once."):
        EndConfig.from_args(0.1, rate=0.2)
    with pytest.raises(ConfigError, match="step is not a field of EndConfig(.|\n)*Did you mean steps?"):
        EndConfig.from_args(step=3)
    with pytest.raises(ConfigError, match="rate takes a number, not 'high'"):
        EndConfig.from_args("high")


def test_a_builder_is_bound_to_a_class_and_inherited() -> None:
    @dataclass
    class BoundConfig(EndConfig):
        pass

    @dataclass
    class BoundChildConfig(BoundConfig):
        pass

    @bind(BoundConfig)
    def build(config: EndConfig, factor: int = 1) -> float:
        return config.rate * factor

    assert EndConfig.BUILDER is None and EndConfig().BUILDER is None
    for config in (BoundConfig(), BoundChildConfig()):
        assert config.BUILDER is build
        assert config.BUILDER(config, factor=4) == 2.0
    assert config.replace(rate=0.1).as_dict() == {"rate": 0.1, "steps": 10}

    @bind(BoundChildConfig)
    class Built:
        pass

    assert BoundConfig.BUILDER is build
    assert BoundChildConfig.BUILDER is Built
    with pytest.raises(RegistryError, match="BoundConfig is bound to .*build already. Give the second a config of its"):
        bind(BoundConfig)(build)
    with pytest.raises(ConfigError, match="BUILDER is not a field of BoundConfig"):
        BoundConfig().BUILDER = build  # type: ignore[misc]


def test_only_what_can_be_called_is_bound_and_only_to_config_classes() -> None:
    with pytest.raises(ArgumentError, match=r"bind takes a Config class, not 3. Write @bind\(MyConfig\)"):
        bind(3)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"bind\(EndConfig\) takes a class or a function, not 'build'"):
        bind(EndConfig)("build")  # type: ignore[type-var]


def test_fields_are_never_added_by_an_override() -> None:
    config = EndConfig()
    config.override({"steps": 3}, is_strict=True)
    assert config.steps == 3
    with pytest.raises(ConfigError, match=r"is_strict=False\) would add fields to EndConfig.*Declare them there"):
        config.override({"steps": 4}, is_strict=False)
    with pytest.raises(AttributeError, match="has no field 'get'. A config has every field of its class: write config"):
        config.get("steps", 1)  # type: ignore[attr-defined]
