"""Configs as YAML and JSON: what text means, where it stands, and the way back."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from trellis.config import Config, origin_of
from trellis.errors import ConfigError


@dataclass
class PartConfig(Config):
    rate: float = 0.5
    name: str | None = None


@dataclass
class TextConfig(Config):
    word: str = "x"
    maybe: str | None = "y"
    flag: bool = False
    count: int = 1
    limit: int | None = 2
    rate: float = 0.5
    scale: str | float | None = None
    anything: Any = None
    sizes: tuple[int, ...] = (1,)
    names: list[str] = field(default_factory=list)
    part: PartConfig = PartConfig()
    parts: list[PartConfig] = field(default_factory=list)


def read(folder: Path, text: str) -> TextConfig:
    path = folder / "some.yaml"
    path.write_text(text, encoding="utf-8")
    return TextConfig.from_yaml(path)


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("word: off", "word", "off"),
        ("word: 12:30", "word", "12:30"),
        ("word: 2024-01-01", "word", "2024-01-01"),
        ("word: 3", "word", "3"),
        ("word:", "word", ""),
        ("word: 'None'", "word", "None"),
        ("maybe: None", "maybe", None),
        ("maybe: null", "maybe", None),
        ("maybe: ~", "maybe", None),
        ("maybe:", "maybe", None),
        ("maybe: 'null'", "maybe", "null"),
        ("flag: on", "flag", True),
        ("flag: No", "flag", False),
        ("flag: true", "flag", True),
        ("count: 1_000", "count", 1000),
        ("count: 1e6", "count", 1_000_000),
        ("count: -3", "count", -3),
        ("limit: None", "limit", None),
        ("rate: 1e-4", "rate", 1e-4),
        ("rate: -1.e-3", "rate", -1e-3),
        ("rate: -1.5E-3", "rate", -1.5e-3),
        ("rate: .5", "rate", 0.5),
        ("rate: +1e+3", "rate", 1000.0),
        ("rate: 2", "rate", 2.0),
        ("rate: .inf", "rate", math.inf),
        ("scale: dynamic", "scale", "dynamic"),
        ("scale: 128", "scale", 128.0),
        ("scale: '128'", "scale", "128"),
        ("anything: [1, yes, a, {b: 1e-3}]", "anything", [1, True, "a", {"b": 1e-3}]),
        ("sizes: [1, 2]", "sizes", (1, 2)),
        ("sizes: !!python/tuple [3]", "sizes", (3,)),
        ("names: [off, 3, a b]", "names", ["off", "3", "a b"]),
    ],
)
def test_the_field_decides_what_text_means(tmp_path: Path, line: str, name: str, value: object) -> None:
    result = getattr(read(tmp_path, line), name)
    assert result == value
    assert type(result) is type(value) or isinstance(value, list)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("count: 12:30", "count takes a whole number, not 12:30."),
        ("count: '3'", "count takes a whole number, not '3'.\n.*\n.*\n  Write:\n      count: 3"),
        ("count: 1.5", "count takes a whole number, not 1.5."),
        ("count: 010", "count takes a whole number, not 010."),
        ("word: null", "word takes text, and cannot be null."),
        ("flag: 1", "flag takes true or false, not 1."),
        ("flag: ture", "flag takes true or false, not ture.\n.*\n.*\n  Write:\n      flag: true"),
        ("names: a", r"names takes a list, each text, not a.\n.*\n.*\n  Write:\n      names: \[a\]"),
        ("rate: fast", "rate takes a number, not fast."),
        ("word: !!python/object:os.system x", "The tag .*python/object:os.system is not read."),
        ("part: &a {name: *a}", "This value contains itself."),
        ("anything: " + "[" * 5000, "The file is nested too deeply to be read: 64 levels are the most."),
        ("part: {<<: x}", "Only a mapping, or a list of mappings, can be merged"),
    ],
)
def test_text_that_a_field_does_not_take_is_refused(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, line)


def test_every_value_knows_its_line(tmp_path: Path) -> None:
    config = read(tmp_path, "word: a\npart:\n  rate: 2\nparts:\n- name: b\n")
    path = str(tmp_path / "some.yaml")
    assert str(origin_of(config, "word")) == f"{path}:1"
    assert str(origin_of(config, "part.rate")) == f"{path}:3"
    assert str(origin_of(config, "parts[0].name")) == f"{path}:5"
    assert str(origin_of(config, "part.name")) == "default"


def test_anchors_and_merge_keys_are_followed(tmp_path: Path) -> None:
    config = read(tmp_path, "part: &p {rate: 2, name: a}\nparts:\n- <<: *p\n  name: b\n- *p\n")
    assert config.parts == [PartConfig(rate=2.0, name="b"), PartConfig(rate=2.0, name="a")]


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    assert read(tmp_path, "") == TextConfig()
    assert read(tmp_path, "# only a remark\n") == TextConfig()


@pytest.mark.parametrize(
    "config",
    [
        TextConfig(),
        TextConfig(word="off", maybe="null", names=["no", "1e3", "", "a: b", "#", " x"], rate=1e-7),
        TextConfig(word="zwei\nZeilen", anything={"a": [1, None]}, parts=[PartConfig(), PartConfig(name="12:30")]),
        TextConfig(scale="128", sizes=(), word="né"),
        TextConfig(scale=128.0, count=10**20, rate=-math.inf),
    ],
)
def test_yaml_and_json_come_back_as_they_were(tmp_path: Path, config: TextConfig) -> None:
    assert read(tmp_path, config.as_yaml()) == config
    path = tmp_path / "some.json"
    path.write_text(config.as_json(), encoding="utf-8")
    if not math.isinf(config.rate):
        assert TextConfig.from_json(path) == config


def test_other_readers_read_the_same_yaml() -> None:
    config = TextConfig(word="off", rate=1e-7, names=["no", "12:30"])
    plain = {**config.as_dict(), "sizes": [1]}
    assert yaml.safe_load(config.as_yaml()) == plain
    assert json.loads(config.as_json()) == plain


def test_json_may_have_tabs(tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    path.write_text('{\n\t"word": "a\\/b",\n\t"count": 3\n}\n')
    config = TextConfig.from_json(path)
    assert (config.word, config.count) == ("a/b", 3)


def test_reading_leaves_the_loaders_of_others_alone(tmp_path: Path) -> None:
    read(tmp_path, "rate: 1e-4").as_yaml()
    assert yaml.safe_load("a: 1e-4") == {"a": "1e-4"}
    assert yaml.dump([1, 2]) == "- 1\n- 2\n"


def laughs(n_levels: int, *, begin: str, line: str = "[*l{0}, *l{0}, *l{0}, *l{0}, *l{0}, *l{0}]") -> str:
    """A document whose aliases stand for 6 ** n_levels values."""
    levels = (f"  l{n + 1}: &l{n + 1} {line.format(n)}" for n in range(n_levels))
    return "\n".join(["anything:", f"  l0: &l0 {begin}", *levels])


@pytest.mark.parametrize(
    "text",
    [
        laughs(10, begin="[x, x]"),
        laughs(30, begin="{x: 1, y: 2}", line="{{a: *l{0}, b: *l{0}}}"),
    ],
)
def test_aliases_of_aliases_are_not_followed_for_ever(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"aliases \(\*name\) stand for more than \d+ values"):
        read(tmp_path, text)


def test_merges_of_merges_take_no_longer_than_their_text(tmp_path: Path) -> None:
    text = laughs(40, begin="{x: 1, y: 2}", line="{{<<: [*l{0}, *l{0}], z{0}: 3}}")
    assert len(read(tmp_path, text).anything["l40"]) == 42
    nested = "{x: 1}"
    for n in range(20):
        nested = f"{{<<: [&m{n} {nested}, *m{n}]}}"
    assert read(tmp_path, f"anything: {nested}").anything == {"x": 1}


def test_of_merged_mappings_the_first_counts_and_own_values_count_most(tmp_path: Path) -> None:
    text = "anything:\n  a: &a {x: 1, y: 1}\n  b: &b {x: 2, z: 2}\n  c: {<<: [*a, *b], y: 3}"
    assert read(tmp_path, text).anything["c"] == {"x": 1, "z": 2, "y": 3}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("anything: {<<: 3}", r"some.yaml:1:16: Only a mapping, or a list of mappings, can be merged"),
        ("anything: {<<: [3]}", r"Only a mapping, or a list of mappings"),
        ("anything: {[1, 2]: 3}", r"some.yaml:1:12: A key is text here"),
        (f"{laughs(12, begin='[x, x]')}\n  ? *l12\n  : 1", r"some.yaml:14:8: A key is text"),
        (f"anything: {'[' * 100}{']' * 100}", r"some.yaml:1:74: .* 64 levels are the most"),
        (f"anything: {'[' * 5000}{']' * 5000}", "nested too deeply"),
        (f"count: {'9' * 5000}", r"count takes a whole number, not 9{200}…\."),
        (f"count: 0x{'f' * 5000}", r"count takes a whole number, not 0xf{198}…\."),
        (f"rate: {'1' * 200_000}x", r"rate takes a number"),
    ],
)
def test_what_would_be_too_much_to_read_is_refused_at_its_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, text)


def test_json_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    for depth in (100, 100_000):
        file = tmp_path / "some.json"
        file.write_text(f'{{\t"anything": {"[" * depth}{"]" * depth}}}')
        with pytest.raises(ConfigError, match=r"nested too deeply|does not take tabs"):
            TextConfig.from_yaml(file)


def test_of_thousands_of_unknown_names_the_first_get_a_suggestion(tmp_path: Path) -> None:
    names = "\n".join(f"  nmae{n}: 1" for n in range(3000))
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, f"part:\n{names}")
    problems = raised.value.problems
    assert len(problems) == 3000
    assert sum("Did you mean part.name?" in problem for problem in problems) == 100
