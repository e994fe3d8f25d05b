"""The registry of names and classes."""

import sys
import types
from pathlib import Path

import pytest

from trellis.errors import RegistryError
from trellis.registry import Registry


class Parent: ...


class Child(Parent): ...


class Stranger: ...


@pytest.fixture
def animals() -> Registry[str]:
    registry: Registry[str] = Registry("animal", advice="Import the zoo.")
    registry.register("cats/lion")("roar")
    registry.register("cats/lynx")("hiss")
    registry.register("dog")("bark")
    return registry


def test_a_name_returns_what_was_registered(animals: Registry[str]) -> None:
    assert animals.get("cats/lion") == "roar"
    assert animals.names() == ["cats/lion", "cats/lynx", "dog"]


def test_the_decorator_returns_what_it_decorates() -> None:
    registry: Registry[object] = Registry("thing")

    @registry.register("one")
    def one() -> int:
        return 1

    assert one() == 1
    assert registry.get("one") is one


def test_an_unknown_name_suggests_the_nearest(animals: Registry[str]) -> None:
    with pytest.raises(RegistryError) as caught:
        animals.get("cats/loin")
    assert str(caught.value) == (
        "There is no animal 'cats/loin'. Did you mean cats/lion? "
        "Registered are: cats/lion, cats/lynx, dog. Import the zoo."
    )
    assert isinstance(caught.value, LookupError)


def test_an_empty_registry_says_so() -> None:
    with pytest.raises(RegistryError, match="There is no animal 'x'. None is registered."):
        Registry[str]("animal").get("x")


def test_a_part_of_a_name_is_a_group_not_an_entry(animals: Registry[str]) -> None:
    with pytest.raises(
        RegistryError, match="There is no animal 'cats'. It is a group, which has: cats/lion, cats/lynx."
    ):
        animals.get("cats")


def test_there_is_nothing_below_an_entry(animals: Registry[str]) -> None:
    with pytest.raises(RegistryError, match="There is no animal 'dog/poodle'. "):
        animals.get("dog/poodle")


@pytest.mark.parametrize("name", ["dog", "cats/lion"])
def test_a_name_is_registered_once(animals: Registry[str], name: str) -> None:
    with pytest.raises(RegistryError, match=f"animal '{name}' is registered already, by '"):
        animals.register(name)


@pytest.mark.parametrize(("name", "beside"), [("cats", "cats/lion"), ("dog/poodle", "dog")])
def test_a_name_is_either_a_group_or_an_entry(animals: Registry[str], name: str, beside: str) -> None:
    with pytest.raises(RegistryError, match=f"animal '{name}' cannot stand beside '{beside}'"):
        animals.register(name)


def test_a_name_has_no_empty_part(animals: Registry[str]) -> None:
    with pytest.raises(RegistryError, match="animal name 'cats//x' has an empty part"):
        animals.register("cats//x")


def test_a_class_finds_its_own_entry_or_its_parents() -> None:
    registry: Registry[str] = Registry("task")
    registry.register(Parent)("of parent")
    assert registry.get(Child) == "of parent"
    registry.register(Child)("of child")
    assert registry.get(Child) == "of child"
    with pytest.raises(RegistryError, match="There is no task for .*Stranger. Import the module that registers it."):
        registry.get(Stranger)


def test_what_registers_entries_of_our_own_is_imported_when_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "zoo.py").write_text(
        "import sys\nsys.modules['zoo_registry'].animals.register('cats/puma')('scream')\n"
    )
    home = types.ModuleType("zoo_registry")
    home.animals = animals = Registry[str]("animal", modules=("zoo",))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "zoo_registry", home)
    assert "zoo" not in sys.modules
    with pytest.raises(RegistryError, match="animal 'cats/puma' is registered already"):
        animals.register("cats/puma")
    assert animals.names() == ["cats/puma"]
    assert animals.get("cats/puma") == "scream"
    monkeypatch.delitem(sys.modules, "zoo")
