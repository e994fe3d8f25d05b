"""The arguments of a `run_fn`, read from artifacts and properties; all that is wrong with those is collected."""

import json
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from trellis.errors import ArgumentError, shown
from trellis.executor.artifacts import (
    Artifacts,
    Examples,
    eval_model_dir,
    only_file,
    served_model_path,
    serving_model_dir,
    split_dir,
)
from trellis.executor.data_accessor import DataAccessor, count_examples
from trellis.runtime import TF_CONFIG, cluster_role
from trellis.spelling import did_you_mean

RUN_ARGS = "trellis_run_args"
"""The entry of custom_config that says how a run is run."""
"""The variable by which a cluster tells its workers who they are."""
_RUN_ARGS = ("workers", "timeout", "worker_timeout", "model_files", "serves_parameters")
_INPUTS = ("examples", "schema", "transform_graph", "base_model", "hyperparameters", "statistics")
_OUTPUTS = {"model": "Model", "model_run": "ModelRun"}

_Value = TypeVar("_Value")


@dataclass(eq=False, repr=False)
class ExampleCounts(Mapping[str, int]):
    """The number of examples by split, found when it is asked for: in statistics if there are some, else by counting.

    Example:
        n_epochs = fn_args.train_steps * batch_size / fn_args.num_examples["train"]
    """

    patterns: Mapping[str, Sequence[str]]
    """Patterns of the files of each split."""
    statistics: str | None = None
    """The directory of statistics of the examples."""

    def __post_init__(self) -> None:
        self._counts: dict[str, int] = {}

    def __getitem__(self, split: str) -> int:
        if split not in self._counts:
            statistics_dir = None if self.statistics is None else split_dir(self.statistics, split)
            self._counts[split] = count_examples(self.patterns[split], statistics_dir=statistics_dir)
        return self._counts[split]

    def __iter__(self) -> Iterator[str]:
        return iter(self.patterns)

    def __len__(self) -> int:
        return len(self.patterns)

    def __repr__(self) -> str:
        # Showing the counts does not count examples that nobody has asked for.
        return repr({split: self._counts.get(split, ...) for split in self})


# For what the executor always says; only an `FnArgs` that is made by hand may leave it out.
_GIVEN_BY_THE_EXECUTOR: Any = None


@dataclass
class FnArgs:
    """The one argument of a `run_fn`: where its data is, where its model goes, how long to train.

    Every field is None if there is nothing to say. Fields may be set: published modules do so.

    Example:
        def run_fn(fn_args: FnArgs) -> None:
            model = train(fn_args.train_files, n_steps=fn_args.train_steps or 1000)
            model.save(fn_args.serving_model_dir)
    """

    working_dir: str | None = None
    train_files: list[str] = _GIVEN_BY_THE_EXECUTOR
    """Patterns of files: one for each split and each artifact."""
    eval_files: list[str] = _GIVEN_BY_THE_EXECUTOR
    train_steps: int | None = None
    eval_steps: int | None = None
    schema_path: str | None = None
    """The only file of the schema."""
    schema_file: str | None = None
    """The same, by its older name."""
    transform_graph_path: str | None = None
    transform_output: str | None = None
    """The same, by its older name."""
    data_accessor: DataAccessor = _GIVEN_BY_THE_EXECUTOR
    """Reads batches of examples from files."""
    serving_model_dir: str = _GIVEN_BY_THE_EXECUTOR
    """Where the model has to be when `run_fn` returns, from where it is put in its place when it is whole.

    It does not exist before; of many workers, each has its own.
    """
    eval_model_dir: str = _GIVEN_BY_THE_EXECUTOR
    """Where a second form of the model may be written, to be analysed."""
    model_run_dir: str = _GIVEN_BY_THE_EXECUTOR
    """For what else the training writes: checkpoints, summaries. It stays when a run fails."""
    base_model: str | None = None
    """A model to start from."""
    hyperparameters: dict[str, Any] | None = None
    """The result of a tuning."""
    custom_config: dict[str, Any] | None = None
    num_examples: Mapping[str, int] = _GIVEN_BY_THE_EXECUTOR
    """How many examples each split has; counted when it is first asked for."""


@dataclass(frozen=True)
class RunArgs:
    """How a run is run."""

    workers: int = 1
    timeout: float | None = None
    """Seconds after which the run is stopped."""
    worker_timeout: float = 60.0
    """Seconds that one of several workers may be silent; then it counts as lost, and the run fails."""
    model_files: Sequence[str] = ()
    """Patterns of the files of a model whose format the executor does not know."""
    serves_parameters: bool = False
    """Whether `run_fn` is called in a parameter server too, and is one there, as with TensorFlow's own strategy."""
    is_chief: bool = True
    """Whether this process publishes the model: it is alone, or the chief of its cluster."""


class Problems:
    """Everything that is wrong before a run, to be raised as one error."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._cause: BaseException | None = None

    def __bool__(self) -> bool:
        return bool(self._texts)

    def add(self, text: str) -> None:
        """Adds a problem, once."""
        if text not in self._texts:
            self._texts.append(text)

    def attempt(self, place: str | None, function: Callable[[], _Value]) -> _Value | None:
        """Returns what a function returns; if it raises an ArgumentError, adds that as a problem and returns None.

        Args:
            place: What the error is about, unless its message says so.
        """
        try:
            return function()
        except ArgumentError as error:
            self.add(f"{place}: {error}" if place else str(error))
            self._cause = self._cause or error.__cause__
            return None

    def raise_if_any(self) -> None:
        """Raises all problems, if there are any."""
        if not self._texts:
            return
        head = [f"{len(self._texts)} problems before the run"] if len(self._texts) > 1 else []
        raise ArgumentError("\n\n".join([*head, *self._texts])) from self._cause


def build_fn_args(
    inputs: Artifacts, outputs: Artifacts, exec_properties: Mapping[str, Any], problems: Problems
) -> FnArgs:
    """Returns the arguments of a `run_fn` by the published rules; what is wrong is added to `problems`."""
    _check_keys(inputs, "input_dict", _INPUTS, problems)
    _check_keys(outputs, "output_dict", tuple(_OUTPUTS), problems)
    examples = [artifact for artifact in inputs.get("examples", ()) if isinstance(artifact, Examples)]
    train_splits, train_steps = _read_steps(exec_properties, "train", problems)
    eval_splits, eval_steps = _read_steps(exec_properties, "eval", problems)
    _check_examples(examples, [*train_splits, *eval_splits], problems)
    schema_path = problems.attempt("schema", lambda: _only_path(inputs, "schema"))
    transform_graph = problems.attempt("transform_graph", lambda: _only_uri(inputs, "transform_graph"))
    _check_outputs(inputs, outputs, problems)
    model: Any = problems.attempt("model", lambda: _only_uri(outputs, "model"))
    model_run: Any = problems.attempt("model_run", lambda: _only_uri(outputs, "model_run"))
    return FnArgs(
        train_files=_patterns(examples, train_splits),
        eval_files=_patterns(examples, eval_splits),
        train_steps=train_steps,
        eval_steps=eval_steps,
        schema_path=schema_path,
        schema_file=schema_path,
        transform_graph_path=transform_graph,
        transform_output=transform_graph,
        data_accessor=DataAccessor(),
        serving_model_dir=model and serving_model_dir(model),
        eval_model_dir=model and eval_model_dir(model),
        model_run_dir=model_run,
        base_model=problems.attempt("base_model", lambda: _read_base_model(inputs)),
        hyperparameters=problems.attempt("hyperparameters", lambda: _read_hyperparameters(inputs)),
        custom_config=problems.attempt("custom_config", lambda: _own_custom_config(exec_properties)),
        num_examples=ExampleCounts(
            {split: _patterns(examples, [split]) for artifact in examples for split in artifact.splits},
            statistics=problems.attempt("statistics", lambda: _only_uri(inputs, "statistics")),
        ),
    )


def read_run_args(exec_properties: Mapping[str, Any], problems: Problems) -> RunArgs:
    """Returns how a run is run: by the entry `trellis_run_args` of custom_config, and by the cluster that it is in."""
    is_chief = problems.attempt("environment", _is_chief)
    is_in_cluster = is_chief is not None
    fields = problems.attempt("custom_config", lambda: _read_run_args(exec_properties, is_in_cluster=is_in_cluster))
    return RunArgs(**(fields or {}), is_chief=is_chief is not False)


def read_custom_config(exec_properties: Mapping[str, Any]) -> Any:
    """Returns `custom_config`, given as a mapping or as JSON text; what is empty is returned as it is."""
    config = exec_properties.get("custom_config")
    if isinstance(config, str):
        config = _read_json(config or "null")
    if config and not isinstance(config, Mapping):
        shown = f"{type(config).__name__} {config!r}"
        raise ArgumentError(f"it is the {shown}. Give a mapping, or its JSON text: '{{\"rate\": 0.1}}'.")
    return dict(config) if isinstance(config, Mapping) else config


def _own_custom_config(exec_properties: Mapping[str, Any]) -> Any:
    """Returns the settings that are the user's own; a module does not see how it is run."""
    config = read_custom_config(exec_properties)
    if not config or RUN_ARGS not in config:
        return config
    return {name: value for name, value in config.items() if name != RUN_ARGS} or None


def _check_keys(artifacts: Artifacts, name: str, known: Sequence[str], problems: Problems) -> None:
    for key in artifacts.keys() - set(known):
        suggestion = did_you_mean(key, [other for other in known if other not in artifacts])
        if suggestion:
            problems.add(f"{name}[{key!r}] means nothing.{suggestion}")


def _read_steps(exec_properties: Mapping[str, Any], side: str, problems: Problems) -> tuple[list[str], int | None]:
    """Returns the splits and the number of steps that train_args or eval_args tell."""
    key = f"{side}_args"
    steps = problems.attempt(key, lambda: _checked_steps(exec_properties.get(key), key=key, split=side))
    return steps or ([], None)


def _checked_steps(value: Any, *, key: str, split: str) -> tuple[list[str], int | None]:
    if value is None:
        raise ArgumentError(
            f"it is missing. Give exec_properties[{key!r}], such as '{{\"num_steps\": 100}}' or '{{}}'."
        )
    fields = _read_json(value or "{}") if isinstance(value, str) else value
    if not isinstance(fields, Mapping):
        raise ArgumentError(f"it is {shown(fields)}. Give a mapping, or its JSON text: '{{\"num_steps\": 100}}'.")
    known = ("splits", "num_steps", "numSteps")
    for name in fields.keys() - set(known):
        warnings.warn(f"{key}: the field {name!r} has no effect.{did_you_mean(name, known)}", stacklevel=2)
    splits = fields.get("splits") or [split]
    if isinstance(splits, str) or not all(isinstance(name, str) for name in splits):
        raise ArgumentError(f"splits is {shown(splits)}. Give a list of names, such as [{split!r}].")
    return list(splits), _read_n_steps(fields.get("num_steps", fields.get("numSteps")))


def _read_n_steps(value: Any) -> int | None:
    # JSON of the published messages may write numbers as text.
    text = str(0 if value is None else value).removesuffix(".0")
    try:
        n_steps = int(text)
    except ValueError:
        raise ArgumentError(f"num_steps is {shown(value)}. Give a whole number; 0 leaves it to the run_fn.") from None
    if n_steps < 0:
        raise ArgumentError(f"num_steps is {text}. Give 0, which leaves it to the run_fn, or more.")
    return n_steps or None


def _read_json(text: str, *, name: str = "") -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        shown = name or repr(text)
        raise ArgumentError(f"{shown} is no JSON: {error}. Quote names and texts with double quotes.") from None


def _check_examples(examples: Sequence[Examples], splits: Sequence[str], problems: Problems) -> None:
    if not examples:
        problems.add("input_dict['examples'] is missing or empty: give at least one, such as [Examples('data')].")
    payloads = {artifact.payload_format: artifact.uri for artifact in examples}
    if len(payloads) > 1:
        listed = ", ".join(f"`{uri}` has {payload}" for payload, uri in payloads.items())
        problems.add(f"examples: {listed}. Give artifacts of one payload format.")
    for artifact in examples:
        if not Path(artifact.uri).is_dir():
            problems.add(f"examples: there is no directory `{artifact.uri}`.")
            continue
        for split in splits:
            problems.attempt("examples", partial(_check_split, artifact, split))


def _check_split(examples: Examples, split: str) -> None:
    folder = Path(split_dir(examples.uri, split))
    if split not in examples.splits or not folder.is_dir():
        suggestion = "" if split in examples.splits else did_you_mean(split, examples.splits)
        listed = f"Its splits are {', '.join(examples.splits)}" if examples.splits else "It has no splits"
        raise ArgumentError(
            f"there is no split {split!r} in `{examples.uri}`.{suggestion} {listed}; a split is a directory such as "
            f"Split-{split}, and train_args and eval_args name those that are used."
        )
    files = [path for path in folder.iterdir() if path.is_file()]
    if not any(path.stat().st_size for path in files):
        content = f"{len(files)} empty files" if files else "no files"
        raise ArgumentError(f"`{folder}` has {content}. Write the examples again.")


def _patterns(examples: Sequence[Examples], splits: Sequence[str]) -> list[str]:
    return [f"{split_dir(artifact.uri, split)}/*" for split in splits for artifact in examples]


def _check_outputs(inputs: Artifacts, outputs: Artifacts, problems: Problems) -> None:
    input_keys = {os.path.realpath(artifact.uri): key for key, artifacts in inputs.items() for artifact in artifacts}
    for key, kind in _OUTPUTS.items():
        if not outputs.get(key):
            problems.add(f"output_dict[{key!r}] is missing or empty: give one, such as [{kind}('out/{key}')].")
    for key, artifacts in outputs.items():
        for uri in (artifact.uri for artifact in artifacts):
            if os.path.realpath(uri) in input_keys:
                both = f"{key} and {input_keys[os.path.realpath(uri)]} are both `{uri}`"
                problems.add(f"{both}: what is read would be overwritten. Give the {key} a directory of its own.")
            path = Path(uri).absolute()
            existing = next(folder for folder in (path, *path.parents) if folder.exists())
            if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
                reason = "cannot be written to" if existing.is_dir() else "is a file"
                problems.add(f"{key}: `{uri}` cannot be written: `{existing}` {reason}. Give another directory.")


def _only_uri(artifacts: Artifacts, key: str) -> str | None:
    """Returns the uri of the one artifact of a key, if there is one."""
    uris = [artifact.uri for artifact in artifacts.get(key, ())]
    if len(uris) > 1:
        raise ArgumentError(f"one artifact is needed, but {len(uris)} are given: {', '.join(uris)}.")
    return uris[0] if uris else None


def _only_path(artifacts: Artifacts, key: str) -> str | None:
    """Returns the path of the one file of the one artifact of a key, if there is one."""
    uri = _only_uri(artifacts, key)
    return str(only_file(uri)) if uri else None


def _read_base_model(inputs: Artifacts) -> str | None:
    uri = _only_uri(inputs, "base_model")
    if uri is not None and not Path(uri).is_dir():
        raise ArgumentError(f"there is no directory `{uri}`. Give that of a finished model.")
    return served_model_path(uri) if uri else None


def _read_hyperparameters(inputs: Artifacts) -> dict[str, Any] | None:
    path = _only_path(inputs, "hyperparameters")
    if path is None:
        return None
    values = _read_json(Path(path).read_text(), name=f"`{path}`")
    if not isinstance(values, dict):
        raise ArgumentError(f"`{path}` holds a {type(values).__name__}. A tuning writes one JSON mapping.")
    return values


def _read_run_args(exec_properties: Mapping[str, Any], *, is_in_cluster: bool) -> Mapping[str, Any]:
    fields = (read_custom_config(exec_properties) or {}).get(RUN_ARGS) or {}
    if not isinstance(fields, Mapping):
        raise ArgumentError(f"{RUN_ARGS} is {shown(fields)}. Give a mapping such as {{'workers': 2, 'timeout': 3600}}.")
    for name in fields.keys() - set(_RUN_ARGS):
        suggestion = did_you_mean(str(name), _RUN_ARGS)
        raise ArgumentError(f"{RUN_ARGS} has no field {name!r}.{suggestion} It has {', '.join(_RUN_ARGS)}.")
    workers = fields.get("workers", 1)
    if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
        raise ArgumentError(f"workers is {shown(workers)}. Give a whole number, 1 or more.")
    if workers > 1 and is_in_cluster:
        raise ArgumentError(
            f"{TF_CONFIG} is set, so a cluster has started this process as one of its workers, and it cannot be "
            f"{workers} workers itself. Leave out workers, or unset {TF_CONFIG}."
        )
    for name, what in (("timeout", "the run may take"), ("worker_timeout", "a worker may be silent")):
        seconds = fields.get(name)
        if seconds is None:
            continue
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
            raise ArgumentError(f"{name} is {shown(seconds)}. Give the seconds that {what}, more than 0.")
    if not isinstance(fields.get("serves_parameters", False), bool):
        raise ArgumentError(f"serves_parameters is {fields['serves_parameters']!r}. Give true or false.")
    files = fields.get("model_files", ())
    if isinstance(files, str) or not (isinstance(files, Sequence) and all(map(_is_pattern_below, files))):
        raise ArgumentError(f"model_files is {shown(files)}. Give a list of names or patterns, such as ['model.cbm'].")
    return {name: value for name, value in fields.items() if value is not None}


def _is_pattern_below(pattern: object) -> bool:
    return isinstance(pattern, str) and bool(pattern) and not Path(pattern).is_absolute() and ".." not in pattern


def publishes_model() -> bool:
    """Whether this process is the one of its cluster that publishes a model; one alone is."""
    return _is_chief() is not False


def _is_chief() -> bool | None:
    """Whether this process publishes for its cluster: the chief, or the first worker where there is no chief.

    None if TF_CONFIG tells of no cluster.
    """
    role = cluster_role()
    if role is None:
        return None
    has_chief = not {"chief", "master"}.isdisjoint(role.cluster)
    return role.kind in ("chief", "master") or (role.kind == "worker" and role.number == 0 and not has_chief)
