"""A change to a config that is made whole or not at all."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from trellis.config.given import Given, Origin
from trellis.config.problems import Problem, correction, edits_of
from trellis.spelling import likeness, nearest


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


@dataclass
class Draft:
    """The writes that a change consists of, and the problems that keep it from being made."""

    paths: Callable[[], Iterable[str]]
    """Yields the dotted path of every field of the config that is being changed."""
    problems: list[Problem] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)

    def commit(self) -> None:
        """Makes the change, as far as it was accepted."""
        for write in self.writes:
            vars(write.config)[write.name] = write.value
            vars(write.config)["_origins"][write.name] = write.origin


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a draft's tree a value is being read."""

    draft: Draft
    path: str = ""

    def child(self, name: str) -> "Place":
        """Returns the place of a field or, for a name like `[0]`, of an element."""
        dot = "." if self.path and not name.startswith("[") else ""
        return Place(self.draft, f"{self.path}{dot}{name}")

    def trial(self) -> "Place":
        """Returns the same place in an empty draft, which can be thrown away."""
        return Place(Draft(self.draft.paths), self.path)

    def adopt(self, trial: "Place") -> Refused:
        """Takes over what a trial has found."""
        self.draft.problems += trial.draft.problems
        self.draft.writes += trial.draft.writes
        return REFUSED

    def refuse(self, given: Given, message: str, *, advice: str = "", value: str | None = None) -> Refused:
        """Notes that a value does not do.

        Args:
            value: What could be written instead, if that is known.
        """
        fix = "" if value is None else correction(self.path, given, sibling=True, value=value)
        edits = edits_of(self.path, given, value=value) if value is not None and not advice else ()
        advice = advice or ("Write:" if fix else "")
        problem = Problem(
            f"{self.path} {message}", given.origin, self.path, advice if fix or value is None else "", fix
        )
        self.draft.problems.append(replace(problem, edits=edits))
        return REFUSED

    def refuse_key(self, key: str, given: Given, *, owner: str, names: Mapping[str, object]) -> Refused:
        """Notes that there is no field of that name, and which one was probably meant.

        Below a name that is like no other, the fields in it are looked for in the rest of the tree.
        """
        path = self.child(key).path
        meant = self._meant(key, path, names)
        if meant is None and isinstance(given.value, dict):
            trial = self.trial()
            for name, item in given.value.items():
                trial.child(key).refuse_key(name, item, owner=owner, names={})
            if any(problem.fix for problem in trial.draft.problems):
                return self.adopt(trial)
        if meant is None:
            has = f"{owner} has: {', '.join(names)}." if names else f"{owner} has no fields."
            self.draft.problems.append(Problem(f"{path} is not a field of {owner}.", given.key_origin, path, has))
            return REFUSED
        sibling = meant.rpartition(".")[0] == self.path
        self.draft.problems.append(
            Problem(
                f"{path} is not a field of {owner}.",
                given.key_origin,
                path,
                f"Did you mean {meant}? Write:",
                correction(meant, given, sibling=sibling),
                edits_of(meant, given),
            )
        )
        return REFUSED

    def _meant(self, key: str, path: str, names: Mapping[str, object]) -> str | None:
        """Looks beside the key first, then for the same name anywhere, then for a name like it."""
        if close := nearest(key, names, cutoff=0.75):
            return self.child(close).path
        paths = list(self.draft.paths())
        same = [other for other in paths if other.rpartition(".")[2] == key]
        if same:
            return max(same, key=lambda other: likeness(path, other))
        if close := nearest(key, names):
            return self.child(close).path
        leaves = {other.rpartition(".")[2] for other in paths}
        elsewhere = nearest(key, leaves, cutoff=0.75)
        alike = [other for other in paths if other.rpartition(".")[2] == elsewhere]
        return max(alike, key=lambda other: likeness(path, other)) if alike else None
