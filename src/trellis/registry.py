"""Names and config classes, and what they stand for."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from trellis.doors import import_whole
from trellis.errors import RegistryError
from trellis.spelling import did_you_mean

Entry = TypeVar("Entry")
Registered = TypeVar("Registered")


class Registry(Generic[Entry]):
    """What is registered under a name such as `bert/squad`, or under a class.

    Names are paths: `bert/squad` makes `bert` a group, and a name is either a group or an entry, never both.
    A class that is not registered itself stands for its nearest registered parent.

    Example:
        >>> greetings: Registry[Callable[[], str]] = Registry("greeting")
        >>> @greetings.register("english/short")
        ... def short() -> str:
        ...     return "Hi"
        >>> greetings.get("english/short")()
        'Hi'
    """

    def __init__(
        self, noun: str, *, advice: str = "Import the module that registers it.", modules: Sequence[str] = ()
    ) -> None:
        """Makes an empty registry.

        Args:
            noun: What one entry is called in messages.
            advice: What to do about a missing one, beyond its spelling.
            modules: What registers entries of our own; imported before the first one is looked up or registered.
        """
        self._noun = noun
        self._advice = advice
        self._modules = modules
        self._entries: dict[str | type, Entry] = {}

    def register(self, key: str | type) -> Callable[[Registered], Registered]:
        """Returns a decorator that puts what it decorates under `key`, unchanged."""
        self.import_modules()
        self._check_free(key)

        def put(entry: Registered) -> Registered:
            self._check_free(key)
            self._entries[key] = entry  # type: ignore[assignment]
            return entry

        return put

    def get(self, key: str | type) -> Entry:
        """Returns what is registered under a name, or under a class or its nearest parent."""
        self.import_modules()
        for candidate in key.__mro__ if isinstance(key, type) else (key,):
            if candidate in self._entries:
                return self._entries[candidate]
        raise RegistryError(self._missing(key))

    def __contains__(self, key: str | type) -> bool:
        """Tells whether a name, or a class itself and not a parent of it, is registered."""
        self.import_modules()
        return key in self._entries

    def names(self) -> list[str]:
        """Returns the registered names, sorted."""
        self.import_modules()
        return sorted(key for key in self._entries if isinstance(key, str))

    def import_modules(self) -> None:
        """Imports the modules that register entries of our own, unless they are."""
        # Each time, without a mark that it is done: Python knows, also while one of them is being imported.
        for name in self._modules:
            import_whole(name)

    def _check_free(self, key: str | type) -> None:
        if key in self._entries:
            raise RegistryError(
                f"{self._noun} {_key_text(key)} is registered already, by {_entry_text(self._entries[key])}. "
                "Give the second one a name of its own."
            )
        if isinstance(key, type):
            return
        if not all(key.split("/")):
            raise RegistryError(f"{self._noun} name {key!r} has an empty part. Write it like 'group/name'.")
        for other in self.names():
            if other.startswith(f"{key}/") or key.startswith(f"{other}/"):
                raise RegistryError(
                    f"{self._noun} {key!r} cannot stand beside {other!r}: a name is either a group or an entry."
                )

    def _missing(self, key: str | type) -> str:
        what = f"There is no {self._noun} {_key_text(key)}."
        if isinstance(key, type):
            classes = [entry.__name__ for entry in self._entries if isinstance(entry, type)]
            return f"{what}{did_you_mean(key.__name__, classes, show=str)} {self._advice}"
        inside = [name for name in self.names() if name.startswith(f"{key.rstrip('/')}/")]
        if inside:
            return f"{what} It is a group, which has: {', '.join(inside)}."
        listed = f" Registered are: {', '.join(self.names())}." if self._entries else " None is registered."
        return f"{what}{did_you_mean(key, self.names(), show=str)}{listed} {self._advice}"


def _key_text(key: str | type) -> str:
    return f"for {key.__module__}.{key.__qualname__}" if isinstance(key, type) else repr(key)


def _entry_text(entry: object) -> str:
    name = getattr(entry, "__qualname__", None)
    return f"{getattr(entry, '__module__', '?')}.{name}" if name else repr(entry)
