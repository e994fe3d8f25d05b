"""The grammar of override flags."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from trellis.config import Edit, Problem, Setting, Text, for_shell, plain_value, raise_if_any
from trellis.errors import ConfigError
from trellis.experiments import parse_params_override, parse_setting


def plain(setting: Setting) -> Any:
    if isinstance(setting.value, dict):
        return {name: plain(item) for name, item in setting.value.items()}
    if isinstance(setting.value, list):
        return [plain(item) for item in setting.value]
    return plain_value(setting.value) if isinstance(setting.value, Text) else setting.value


def read(text: str) -> Any:
    setting, problems = parse_params_override(text)
    assert problems == []
    return plain(setting)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", {}),
        ("a=1,b=2,c=3", {"a": 1, "b": 2, "c": 3}),
        ("a=1,b.b1=2", {"a": 1, "b": {"b1": 2}}),
        ("a.aa.aaa.aaaaa.a=1,a.a=2", {"a": {"aa": {"aaa": {"aaaaa": {"a": 1}}}, "a": 2}}),
        ("a.b[1]=3.45,a.b[2]=1.32,a.b[0]=2.232", {"a": {"b": [2.232, 3.45, 1.32]}}),
        ("a=gs://abc, b=gs://def", {"a": "gs://abc", "b": "gs://def"}),
        (
            "b.b2=-1.e-3, d.d1.d2=+0.001, e=1e+3, a=-1.5E-3",
            {"b": {"b2": -0.001}, "d": {"d1": {"d2": 0.001}}, "e": 1000.0, "a": -0.0015},
        ),
        ("a=true,b=yes,c=off,d=no", {"a": True, "b": True, "c": False, "d": False}),
        ("a=1,a=2", {"a": 2}),
        ("a = 1 , b = x", {"a": 1, "b": "x"}),
        ("a=[1, 2],b=['s','t']", {"a": [1, 2], "b": ["s", "t"]}),
        ("a=[{x: 1}],b={y: 2}", {"a": [{"x": 1}], "b": {"y": 2}}),
        ("a='x,y',b=\"p,q\"", {"a": "x,y", "b": "p,q"}),
        ("a=/p/*.tfrecord,b=s3://c", {"a": "/p/*.tfrecord", "b": "s3://c"}),
        ("a=b=c", {"a": "b=c"}),
        ("a=", {"a": None}),
    ],
)
def test_the_published_grammar_is_read(text: str, values: object) -> None:
    assert read(text) == values


@pytest.mark.parametrize("value", ["*", "@x", "%x", "!x", "#c", "x: y", "good", "slow", ":x"])
def test_text_with_signs_needs_no_quotes(value: str) -> None:
    assert read(f"a={value}") == {"a": value}


def test_items_given_one_by_one_may_be_text() -> None:
    assert read("a[1]=x,a[0]=y") == {"a": ["y", "x"]}


def test_yaml_json_and_a_file_are_read_too(tmp_path: Path) -> None:
    assert read("'b': 5.2\n'c': [30, 40]") == {"b": 5.2, "c": [30, 40]}
    assert read("{ b: { b2: [3, 4] }, d: { d1: { d2: 'hi' } } }") == {"b": {"b2": [3, 4]}, "d": {"d1": {"d2": "hi"}}}
    assert read('{"b": 1}') == {"b": 1}
    path = tmp_path / "some.yaml"
    path.write_text("b: 3\n")
    assert read(str(path)) == {"b": 3}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a.b[0]=1,a.b[2]=2", "a.b is given item by item, but a.b[1] is missing."),
        ("a[300000000]=1", "a is given item by item, but a[0] is missing."),
        (f"a[{'9' * 5000}]=1", f"a[{'9' * 5000}] is not a field's name."),
        (f"{'a.' * 1000}a=1", "A name of 1001 parts is no field's: 64 levels are the most."),
        ("a" * 5000, f"{'a' * 5000} has no '='."),
        ("a=[[1,2,3],[4,5,6]]", "a has a value that cannot be read."),
        ("a={x: 1, y: 2}", "a has a value that cannot be read."),
        (" a=1", "A name cannot start with a blank."),
        ("1a=3", "1a is not a field's name."),
        ("a-b=1", "a-b is not a field's name."),
        ("a=x,y", "y has no '='."),
        ("a=1,,b=2", "There is nothing between two commas."),
        ("a='x", "a has a value that cannot be read."),
        ("a='x}", "a has a value that cannot be read."),
        ("a=x[0-9]", "a has a value that cannot be read."),
        ("a=[*x]", "[*x] cannot be read as a list or a mapping."),
        ("a.b=1,a=2", "a contradicts what stands before it"),
        ("a=2,a.b=1", "a.b contradicts what stands before it"),
        ("missing.yaml", "missing.yaml has no '='."),
        ("{a: [1}", "This is not YAML"),
    ],
)
def test_malformed_text_is_explained(text: str, told: str) -> None:
    _, problems = parse_params_override(text)
    assert len(problems) == 1
    assert problems[0].message.startswith(told)
    assert problems[0].advice or problems[0].fix


def test_an_unquoted_comma_is_explained_with_the_quotes() -> None:
    _, (problem,) = parse_params_override("task.train_data.input_path=a*,b*,trainer.train_steps=3")
    assert problem.fix == "task.train_data.input_path='a*,b*'"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a.b=3", {"a": {"b": 3}}),
        ("a.b=x*,y*", {"a": {"b": "x*,y*"}}),
        ("a=[[1, 2], [3]]", {"a": [[1, 2], [3]]}),
        ("a={x: 1, y: 2}", {"a": {"x": 1, "y": 2}}),
        ("a='3'", {"a": "3"}),
        ("a=file[0-9]", {"a": "file[0-9]"}),
    ],
)
def test_a_setting_takes_all_that_follows_the_equals_sign(text: str, values: object) -> None:
    setting, problems = parse_setting(text)
    assert problems == []
    assert plain(setting) == values


def test_a_setting_without_a_value_is_explained() -> None:
    _, (problem,) = parse_setting("a.b")
    assert problem.message == "a.b has no '='."


@pytest.mark.parametrize("text", ["a='x,y'", "a=[[1, 2], [3]]", "a=$HOME", 'a="x"', "a=1"])
def test_corrected_flags_survive_the_shell(text: str) -> None:
    assert shlex.split(f"--set={for_shell(text)}") == [f"--set={text}"]


def test_corrections_of_the_same_place_are_not_joined_to_a_flag() -> None:
    _, problems = parse_params_override("a=1,b-c=['d','e'],f=2")
    first = Problem("a is not a field.", problems[0].origin, edits=(Edit(0, 3, "aa=1"),))
    with pytest.raises(ConfigError, match="3 problems in the configuration") as caught:
        raise_if_any([*problems, first])
    assert "Corrected:" not in str(caught.value)
