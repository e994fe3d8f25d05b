"""A change to a config that is made whole or not at all."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from trellis.config.problems import Edit, Problem, correction, edits_of
from trellis.config.settings import Origin, Setting, join_path
from trellis.spelling import likeness, nearest

_MOST_SHOWN = 200
_MOST_LOOKED_FOR = 100
"""How many unknown names get a suggestion, which takes a millisecond: nobody reads more, and aliases make thousands."""


class Refused:
    """The type of REFUSED, which stands for a value that was not accepted; the reason is in the draft."""


REFUSED = Refused()


@dataclass(frozen=True, slots=True)
class Write:
    """A checked value on its way into a config's field."""

    config: object
    name: str
    value: object
    origin: Origin


@dataclass(frozen=True, slots=True)
class Draft:
    """The writes that a change consists of, the problems that keep it from being made, and where it is being read."""

    paths: Callable[[], Iterable[str]]
    """Yields the dotted path of every field of the config that is being changed."""
    path: str = ""
    """The place in the tree whose value is being read."""
    problems: list[Problem] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    looked_for: list[str] = field(default_factory=list)
    """The names that the nearest one was looked for, in this draft and all that it was tried with."""

    def commit(self) -> None:
        """Makes the change, as far as it was accepted."""
        for write in self.writes:
            vars(write.config)[write.name] = write.value
            vars(write.config)["_origins"][write.name] = write.origin

    def child(self, name: str) -> "Draft":
        """Returns the same draft at the place of a field or, for a name like `[0]`, of an element."""
        return Draft(self.paths, join_path(self.path, name), self.problems, self.writes, self.looked_for)

    def trial(self) -> "Draft":
        """Returns an empty draft at the same place, which can be thrown away."""
        return Draft(self.paths, self.path, looked_for=self.looked_for)

    def adopt(self, trial: "Draft") -> None:
        """Adds the problems and the writes of a trial."""
        self.problems.extend(trial.problems)
        self.writes.extend(trial.writes)

    def refuse(self, setting: Setting, message: str, *, advice: str = "", value: str | None = None) -> Refused:
        """Notes that a value is not accepted.

        Args:
            message: What is wrong, after the path.
            advice: What comes before the value to write; one that is not the default makes it an example.
            value: What could be written instead, if that is known.
        """
        fix = ""
        edits: tuple[Edit, ...] = ()
        if value is not None:
            fix = correction(self.path, setting, is_sibling=True, value=value)
            # An example is not a correction: a flag is not put right with it.
            edits = () if advice else edits_of(self.path, setting, value=value)
            advice = (advice or "Write:") if fix else ""
        self.problems.append(Problem(f"{self.path} {message}", setting.origin, self.path, advice, fix, edits))
        return REFUSED

    def refuse_kind(self, setting: Setting, kind: object, *, advice: str = "", value: str | None = None) -> Refused:
        """Notes that a value is not of the kind that its field takes."""
        shown = str(setting)
        shown = f"{shown[:_MOST_SHOWN]}…" if len(shown) > _MOST_SHOWN else shown
        return self.refuse(setting, f"takes {kind}, not {shown}.", advice=advice, value=value)

    def refuse_key(self, key: str, setting: Setting, *, owner: str, names: Collection[str] | None) -> Refused:
        """Notes that there is no field of that name, and suggests the nearest.

        Below a name that is like no other, the fields in it are looked for in the rest of the tree.

        Args:
            owner: The name of the config class that was to have the field.
            names: The fields that the class has; None below a name that it has not.
        """
        path = self.child(key).path
        suggestion = self._suggestion(key, path, names or ())
        if suggestion is None and isinstance(setting.value, dict):
            trial = self.trial()
            for name, item in setting.value.items():
                trial.child(key).refuse_key(str(name), item, owner=owner, names=None)
            if any(problem.fix for problem in trial.problems):
                self.adopt(trial)
                return REFUSED
        message = f"{path} is not a field of {owner}."
        if suggestion is None:
            plain = f"{owner} has no fields. A config of your own class is set in code, by the experiment's factory."
            listed = f"{owner} has: {', '.join(names)}." if names else plain
            problem = Problem(message, setting.key_origin, path, "" if names is None else listed)
        else:
            is_sibling = suggestion.rpartition(".")[0] == self.path
            fix = correction(suggestion, setting, is_sibling=is_sibling)
            advice = f"Did you mean {suggestion}? Write:"
            problem = Problem(message, setting.key_origin, path, advice, fix, edits_of(suggestion, setting))
        self.problems.append(problem)
        return REFUSED

    def _suggestion(self, key: str, path: str, names: Collection[str]) -> str | None:
        """Looks beside the key first, then for the same name anywhere, then for a name like it."""
        if len(self.looked_for) >= _MOST_LOOKED_FOR:
            return None
        self.looked_for.append(key)
        if close := nearest(key, names, cutoff=0.75):
            return self.child(close).path
        paths = list(self.paths())
        same = [other for other in paths if other.rpartition(".")[2] == key]
        if same:
            return max(same, key=lambda other: likeness(path, other))
        if close := nearest(key, names):
            return self.child(close).path
        leaves = {other.rpartition(".")[2] for other in paths}
        elsewhere = nearest(key, leaves, cutoff=0.75)
        alike = [other for other in paths if other.rpartition(".")[2] == elsewhere]
        return max(alike, key=lambda other: likeness(path, other)) if alike else None
