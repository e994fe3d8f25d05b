"""The arguments of a `run_fn`, read from artifacts and properties; all that is wrong with those is collected."""

import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trellis.errors import ArgumentError
from trellis.executor.artifacts import (
    Artifact,
    Examples,
    as_artifact,
    eval_model_dir,
    only_file,
    served_model_path,
    serving_model_dir,
    split_dir,
)
from trellis.executor.data_accessor import DataAccessor, ExampleCounts
from trellis.spelling import nearest

RUN_ARGS = "trellis_run_args"
"""The entry of custom_config that says how a run is run."""
TF_CONFIG = "TF_CONFIG"
"""The variable by which a cluster tells its workers who they are."""
_RUN_ARGS = ("workers", "timeout", "model_files")
_INPUTS = ("examples", "schema", "transform_graph", "base_model", "hyperparameters", "statistics")
_OUTPUTS = {"model": "Model", "model_run": "ModelRun"}

Artifacts = Mapping[str, tuple[Artifact, ...]]


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
    train_files: list[str] | None = None
    """Patterns of files: one for each split and each artifact."""
    eval_files: list[str] | None = None
    train_steps: int | None = None
    eval_steps: int | None = None
    schema_path: str | None = None
    """The only file of the schema."""
    schema_file: str | None = None
    """The same, by its older name."""
    transform_graph_path: str | None = None
    transform_output: str | None = None
    """The same, by its older name."""
    data_accessor: DataAccessor | None = None
    """Reads batches of examples from files."""
    serving_model_dir: str | None = None
    """Where the model has to be when `run_fn` returns. It does not exist before; of many workers, each has its own."""
    eval_model_dir: str | None = None
    """Where a second form of the model may be written, to be analysed."""
    model_run_dir: str | None = None
    """For what else the training writes: checkpoints, summaries. It stays when a run fails."""
    base_model: str | None = None
    """A model to start from."""
    hyperparameters: dict[str, Any] | None = None
    """The result of a tuning."""
    custom_config: dict[str, Any] | None = None
    num_examples: Mapping[str, int] | None = None
    """How many examples each split has; counted when it is first asked for."""


@dataclass(frozen=True)
class RunArgs:
    """How a run is run."""

    n_workers: int = 1
    timeout: float | None = None
    """Seconds after which the run is stopped."""
    model_files: tuple[str, ...] = ()
    """Patterns of the files of a model whose format the executor does not know."""
    is_in_cluster: bool = False
    """Whether a cluster has started this process as one of its workers."""
    is_chief: bool = True
    """Whether this process publishes the model: it is alone, or the chief of its cluster."""

    @property
    def needs_processes(self) -> bool:
        """Whether the run has to take place outside of this process."""
        return self.n_workers > 1 or self.timeout is not None


class Problems:
    """Everything that is wrong before a run, to be raised as one error."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._cause: BaseException | None = None

    def __bool__(self) -> bool:
        return bool(self._texts)

    def add(self, text: str, *, cause: BaseException | None = None) -> None:
        """Adds a problem, once."""
        if text not in self._texts:
            self._texts.append(text)
        self._cause = self._cause or cause

    @contextmanager
    def at(self, place: str) -> Iterator[None]:
        """Adds what is raised as a wrong argument, with its place, instead of raising it."""
        try:
            yield
        except ArgumentError as error:
            self.add(f"{place}: {error}")

    def raise_if_any(self) -> None:
        """Raises all problems, if there are any."""
        if not self._texts:
            return
        head = [f"{len(self._texts)} problems before the run"] if len(self._texts) > 1 else []
        raise ArgumentError("\n\n".join([*head, *self._texts])) from self._cause


def read_artifacts(artifacts: Mapping[str, Any]) -> Artifacts:
    """Returns artifacts for whatever objects with a `uri` a caller has."""
    for key, listed in artifacts.items():
        if listed is not None and (isinstance(listed, str) or not isinstance(listed, Sequence)):
            raise ArgumentError(f"{key}: {listed!r} is no list. Artifacts come in lists, one or several to a key.")
    return {
        key: tuple(as_artifact(each, key=key) for each in listed)
        for key, listed in artifacts.items()
        if listed is not None
    }


def build_fn_args(
    inputs: Artifacts, outputs: Artifacts, exec_properties: Mapping[str, Any], problems: Problems
) -> FnArgs:
    """Returns the arguments of a `run_fn` by the published rules; what is wrong is added to `problems`."""
    _check_keys(inputs, "input_dict", _INPUTS, problems)
    _check_keys(outputs, "output_dict", tuple(_OUTPUTS), problems)
    fn_args = FnArgs(data_accessor=DataAccessor())
    examples = [artifact for artifact in inputs.get("examples", ()) if isinstance(artifact, Examples)]
    if not examples:
        problems.add("input_dict['examples'] is missing or empty: give at least one, such as [Examples('data')].")
    splits: list[str] = []
    with problems.at("train_args"):
        train_splits, fn_args.train_steps = _read_steps(exec_properties, key="train_args", split="train")
        fn_args.train_files = _patterns(examples, train_splits)
        splits += train_splits
    with problems.at("eval_args"):
        eval_splits, fn_args.eval_steps = _read_steps(exec_properties, key="eval_args", split="eval")
        fn_args.eval_files = _patterns(examples, eval_splits)
        splits += eval_splits
    _check_examples(examples, dict.fromkeys(splits), problems)
    with problems.at("schema"):
        fn_args.schema_path = _only_path(inputs, "schema")
        fn_args.schema_file = fn_args.schema_path
    with problems.at("transform_graph"):
        fn_args.transform_graph_path = _only_uri(inputs, "transform_graph")
        fn_args.transform_output = fn_args.transform_graph_path
    with problems.at("base_model"):
        fn_args.base_model = _finished_model(_only_uri(inputs, "base_model"))
    with problems.at("hyperparameters"):
        fn_args.hyperparameters = _read_hyperparameters(_only_path(inputs, "hyperparameters"))
    with problems.at("statistics"):
        files = {split: _patterns(examples, [split]) for artifact in examples for split in artifact.splits}
        fn_args.num_examples = ExampleCounts(files, statistics=_only_uri(inputs, "statistics"))
    with problems.at("custom_config"):
        fn_args.custom_config = without_run_args(read_custom_config(exec_properties))
    _check_outputs(inputs, outputs, problems)
    with problems.at("model"):
        model = _only_uri(outputs, "model")
        fn_args.serving_model_dir = serving_model_dir(model) if model else None
        fn_args.eval_model_dir = eval_model_dir(model) if model else None
    with problems.at("model_run"):
        fn_args.model_run_dir = _only_uri(outputs, "model_run")
    return fn_args


def read_run_args(exec_properties: Mapping[str, Any], problems: Problems) -> RunArgs:
    """Returns how a run is run: by the entry `trellis_run_args` of custom_config, and by the cluster that it is in."""
    run_args = RunArgs()
    with problems.at("environment"):
        cluster = _read_cluster(os.environ.get(TF_CONFIG, ""))
        run_args = RunArgs(is_in_cluster=bool(cluster), is_chief=_is_chief(cluster))
    with problems.at("custom_config"):
        run_args = _read_run_args(read_custom_config(exec_properties) or {}, run_args)
    return run_args  # noqa: RET504  (it is the one from above if something was wrong)


def read_custom_config(exec_properties: Mapping[str, Any]) -> Any:
    """Returns `custom_config`, given as a mapping or as JSON text; what is empty is returned as it is."""
    config = exec_properties.get("custom_config")
    if isinstance(config, str):
        config = _read_json(config or "null")
    if config and not isinstance(config, Mapping):
        shown = f"{type(config).__name__} {config!r}"
        raise ArgumentError(f"it is the {shown}. Give a mapping, or its JSON text: '{{\"rate\": 0.1}}'.")
    return dict(config) if isinstance(config, Mapping) else config


def without_run_args(custom_config: Any) -> Any:
    """Returns the settings that are the user's own; a module does not see how it is run."""
    if not isinstance(custom_config, dict) or RUN_ARGS not in custom_config:
        return custom_config
    return {name: value for name, value in custom_config.items() if name != RUN_ARGS} or None


def _check_keys(artifacts: Artifacts, name: str, known: Sequence[str], problems: Problems) -> None:
    for key in artifacts.keys() - set(known):
        close = nearest(key, known)
        if close and close not in artifacts:
            problems.add(f"{name}[{key!r}] means nothing. Did you mean {close!r}?")


def _read_steps(exec_properties: Mapping[str, Any], *, key: str, split: str) -> tuple[list[str], int | None]:
    """Returns the splits and the number of steps that train_args or eval_args tell."""
    if exec_properties.get(key) is None:
        raise ArgumentError(
            f"it is missing. Give exec_properties[{key!r}], such as '{{\"num_steps\": 100}}' or '{{}}'."
        )
    value = exec_properties[key]
    fields = _read_json(value or "{}") if isinstance(value, str) else value
    if not isinstance(fields, Mapping):
        raise ArgumentError(f"it is {fields!r}. Give a mapping, or its JSON text: '{{\"num_steps\": 100}}'.")
    fields = {"num_steps" if name == "numSteps" else name: value for name, value in fields.items()}
    for name in fields.keys() - {"splits", "num_steps"}:
        close = nearest(name, ["splits", "num_steps"])
        suggestion = f" Did you mean {close!r}?" if close else ""
        warnings.warn(f"{key}: the field {name!r} has no effect.{suggestion}", stacklevel=2)
    splits = fields.get("splits") or [split]
    if isinstance(splits, str) or not all(isinstance(name, str) for name in splits):
        raise ArgumentError(f"splits is {splits!r}. Give a list of names, such as [{split!r}].")
    return list(splits), _read_n_steps(fields.get("num_steps"))


def _read_n_steps(value: Any) -> int | None:
    # JSON of the published messages may write numbers as text.
    text = str(value if value is not None else 0).removesuffix(".0")
    if (isinstance(value, bool | Sequence) and not isinstance(value, str)) or not text.lstrip("-").isdecimal():
        raise ArgumentError(f"num_steps is {value!r}. Give a whole number; 0 leaves it to the run_fn.")
    if int(text) < 0:
        raise ArgumentError(f"num_steps is {text}. Give 0, which leaves it to the run_fn, or more.")
    return int(text) or None


def _read_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ArgumentError(f"{text!r} is no JSON: {error}. Quote names and texts with double quotes.") from None


def _check_examples(examples: Sequence[Examples], splits: Mapping[str, None], problems: Problems) -> None:
    payloads = {artifact.payload_format: artifact.uri for artifact in examples}
    if len(payloads) > 1:
        listed = ", ".join(f"`{uri}` has {payload}" for payload, uri in payloads.items())
        problems.add(f"examples: {listed}. Give artifacts of one payload format.")
    for artifact in examples:
        if not Path(artifact.uri).is_dir():
            problems.add(f"examples: there is no directory `{artifact.uri}`.")
            continue
        for split in splits:
            for text in _split_problems(artifact, split):
                problems.add(f"examples: {text}")


def _split_problems(examples: Examples, split: str) -> Iterator[str]:
    folder = Path(split_dir(examples.uri, split))
    if split not in examples.splits or not folder.is_dir():
        close = nearest(split, examples.splits)
        suggestion = f" Did you mean {close!r}?" if close and close != split else ""
        listed = f"Its splits are {', '.join(examples.splits)}" if examples.splits else "It has no splits"
        yield (
            f"there is no split {split!r} in `{examples.uri}`.{suggestion} {listed}; a split is a directory such as "
            f"Split-{split}, and train_args and eval_args name those that are used."
        )
        return
    files = [path for path in folder.iterdir() if path.is_file()]
    if not any(path.stat().st_size for path in files):
        what = f"{len(files)} empty files" if files else "no files"
        yield f"`{folder}` has {what}. Write the examples again."


def _patterns(examples: Sequence[Examples], splits: Sequence[str]) -> list[str]:
    return [f"{split_dir(artifact.uri, split)}/*" for split in splits for artifact in examples]


def _check_outputs(inputs: Artifacts, outputs: Artifacts, problems: Problems) -> None:
    input_keys = {os.path.realpath(artifact.uri): key for key, listed in inputs.items() for artifact in listed}
    for key, kind in _OUTPUTS.items():
        if not outputs.get(key):
            problems.add(f"output_dict[{key!r}] is missing or empty: give one, such as [{kind}('out/{key}')].")
    for key, listed in outputs.items():
        for uri in (artifact.uri for artifact in listed):
            if os.path.realpath(uri) in input_keys:
                both = f"{key} and {input_keys[os.path.realpath(uri)]} are both `{uri}`"
                problems.add(f"{both}: what is read would be overwritten. Give the {key} a directory of its own.")
            path = Path(uri).absolute()
            existing = next(folder for folder in (path, *path.parents) if folder.exists())
            if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
                what = "cannot be written to" if existing.is_dir() else "is a file"
                problems.add(f"{key}: `{uri}` cannot be written: `{existing}` {what}. Give another directory.")


def _only_uri(artifacts: Artifacts, key: str) -> str | None:
    """Returns the uri of the one artifact of a key, if there is one."""
    listed = artifacts.get(key, ())
    if len(listed) > 1:
        uris = ", ".join(artifact.uri for artifact in listed)
        raise ArgumentError(f"one artifact is needed, but {len(listed)} are given: {uris}.")
    return listed[0].uri if listed else None


def _only_path(artifacts: Artifacts, key: str) -> str | None:
    """Returns the path of the one file of the one artifact of a key, if there is one."""
    uri = _only_uri(artifacts, key)
    return str(only_file(uri)) if uri else None


def _finished_model(uri: str | None) -> str | None:
    if uri is not None and not Path(uri).is_dir():
        raise ArgumentError(f"there is no directory `{uri}`. Give that of a finished model.")
    return served_model_path(uri) if uri else None


def _read_hyperparameters(path: str | None) -> dict[str, Any] | None:
    if path is None:
        return None
    try:
        values = json.loads(Path(path).read_text())
    except ValueError as error:
        raise ArgumentError(f"`{path}` is no JSON: {error}. A tuning writes one JSON mapping.") from None
    if not isinstance(values, dict):
        raise ArgumentError(f"`{path}` holds a {type(values).__name__}. A tuning writes one JSON mapping.")
    return values


def _read_run_args(custom_config: Mapping[str, Any], run_args: RunArgs) -> RunArgs:
    fields = custom_config.get(RUN_ARGS) or {}
    if not isinstance(fields, Mapping):
        raise ArgumentError(f"{RUN_ARGS} is {fields!r}. Give a mapping such as {{'workers': 2, 'timeout': 3600}}.")
    for name in fields.keys() - set(_RUN_ARGS):
        close = nearest(str(name), _RUN_ARGS)
        suggestion = f" Did you mean {close!r}?" if close else ""
        raise ArgumentError(f"{RUN_ARGS} has no field {name!r}.{suggestion} It has {', '.join(_RUN_ARGS)}.")
    n_workers = fields.get("workers", 1)
    if not isinstance(n_workers, int) or isinstance(n_workers, bool) or n_workers < 1:
        raise ArgumentError(f"workers is {n_workers!r}. Give a whole number, 1 or more.")
    if n_workers > 1 and run_args.is_in_cluster:
        raise ArgumentError(
            f"{TF_CONFIG} is set, so a cluster has started this process as one of its workers, and it cannot be "
            f"{n_workers} workers itself. Leave out workers, or unset {TF_CONFIG}."
        )
    timeout = fields.get("timeout")
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout <= 0):
        raise ArgumentError(f"timeout is {timeout!r}. Give the seconds that the run may take, more than 0.")
    files = fields.get("model_files", ())
    if isinstance(files, str) or not (isinstance(files, Sequence) and all(map(_is_pattern_below, files))):
        raise ArgumentError(f"model_files is {files!r}. Give a list of names or patterns, such as ['model.cbm'].")
    return replace(run_args, n_workers=n_workers, timeout=timeout, model_files=tuple(files))


def _is_pattern_below(pattern: object) -> bool:
    return isinstance(pattern, str) and bool(pattern) and not Path(pattern).is_absolute() and ".." not in pattern


def _read_cluster(text: str) -> dict[str, Any]:
    """Returns what TF_CONFIG tells, if it tells of a cluster."""
    try:
        config = json.loads(text or "{}")
    except ValueError as error:
        raise ArgumentError(f"{TF_CONFIG} is {text!r}, which is no JSON: {error}. Unset it, or mend it.") from None
    if not isinstance(config, dict):
        raise ArgumentError(f"{TF_CONFIG} is {text!r}, which is no mapping. Unset it, or mend it.")
    return config if config.get("cluster") else {}


def _is_chief(config: Mapping[str, Any]) -> bool:
    """Whether a process publishes: alone, as the chief, or as the first worker where there is no chief."""
    if not config:
        return True
    try:
        kind = config["task"]["type"]
        index = int(config["task"]["index"])
    except (KeyError, TypeError, ValueError):
        raise ArgumentError(
            f"{TF_CONFIG} has a cluster, but does not say which part of it this process is: "
            f"{json.dumps(config)}. Add a task, such as {{'type': 'worker', 'index': 0}}."
        ) from None
    has_chief = bool({"chief", "master"} & set(config["cluster"]))
    return kind in ("chief", "master") or (kind == "worker" and index == 0 and not has_chief)
