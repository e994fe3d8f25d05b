"""From artifacts and properties to the arguments of a `run_fn`, with all that is wrong found on the way."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trellis.errors import ArgumentError
from trellis.executor import artifacts
from trellis.executor.artifacts import Artifact, Examples, as_artifact, only_file, split_dir
from trellis.executor.data_accessor import DataAccessor
from trellis.executor.example_counts import ExampleCounts
from trellis.executor.exec_properties import RUN_ARGS, Problems, StepArgs, read_custom_config, read_step_args
from trellis.executor.fn_args import FnArgs
from trellis.spelling import nearest

_INPUTS = ("examples", "schema", "transform_graph", "base_model", "hyperparameters", "statistics")
_OUTPUTS = ("model", "model_run")


@dataclass(frozen=True)
class Run:
    """What is to be run, between which artifacts."""

    inputs: Mapping[str, tuple[Artifact, ...]]
    outputs: Mapping[str, tuple[Artifact, ...]]
    exec_properties: Mapping[str, Any]


def read_run(input_dict: Mapping[str, Any], output_dict: Mapping[str, Any], exec_properties: Mapping[str, Any]) -> Run:
    """Returns a run between whatever objects with a `uri` a caller has."""
    return Run(_read_artifacts(input_dict), _read_artifacts(output_dict), dict(exec_properties))


def build_fn_args(run: Run, *, problems: Problems) -> FnArgs:
    """Returns the arguments of a `run_fn` after the published rules; what is wrong is added to `problems`."""
    _check_keys(run, problems)
    examples = [each for each in run.inputs.get("examples", ()) if isinstance(each, Examples)]
    if not examples:
        problems.add("input_dict['examples'] is missing or empty: give at least one, such as [Examples('data')].")
    train, eval_ = (
        _steps(run, key, split, problems) for key, split in (("train_args", "train"), ("eval_args", "eval"))
    )
    _check_examples(examples, dict.fromkeys([*train.splits, *eval_.splits]), problems)
    model, model_run = (_only(run.outputs, key, problems, is_needed=True) for key in _OUTPUTS)
    schema, graph, base_model, tuning, statistics = (_only(run.inputs, key, problems) for key in _INPUTS[1:])
    _check_outputs(run, problems)
    schema_path = _path(schema, "schema", problems)
    return FnArgs(
        train_files=_patterns(examples, train.splits),
        eval_files=_patterns(examples, eval_.splits),
        train_steps=train.n_steps,
        eval_steps=eval_.n_steps,
        schema_path=schema_path,
        schema_file=schema_path,
        transform_graph_path=graph,
        transform_output=graph,
        data_accessor=DataAccessor(),
        serving_model_dir=artifacts.serving_model_dir(model) if model else None,
        eval_model_dir=artifacts.eval_model_dir(model) if model else None,
        model_run_dir=model_run,
        base_model=problems.caught(lambda: _served(base_model), place="base_model") if base_model else None,
        hyperparameters=_hyperparameters(_path(tuning, "hyperparameters", problems), problems),
        custom_config=problems.caught(lambda: _own(read_custom_config(run.exec_properties)), place="custom_config"),
        num_examples=_counts(examples, statistics),
    )


def _read_artifacts(given: Mapping[str, Any]) -> dict[str, tuple[Artifact, ...]]:
    found = {}
    for key, listed in given.items():
        if listed is None:
            continue
        if not isinstance(listed, Sequence) or isinstance(listed, str):
            raise ArgumentError(f"{key}: {listed!r} is no list. Artifacts come in lists, one or several to a key.")
        found[key] = tuple(as_artifact(each, key=key) for each in listed)
    return found


def _check_keys(run: Run, problems: Problems) -> None:
    for name, given, known in (("input_dict", run.inputs, _INPUTS), ("output_dict", run.outputs, _OUTPUTS)):
        for key in given.keys() - set(known):
            close = nearest(key, known)
            if close and close not in given:
                problems.add(f"{name}[{key!r}] means nothing. Did you mean {close!r}?")


def _steps(run: Run, key: str, split: str, problems: Problems) -> StepArgs:
    found = problems.caught(lambda: read_step_args(run.exec_properties, key=key, split=split), place=key)
    return found or StepArgs((), None)


def _only(
    given: Mapping[str, tuple[Artifact, ...]], key: str, problems: Problems, *, is_needed: bool = False
) -> str | None:
    """Returns the uri of the one artifact of a key."""
    found = given.get(key, ())
    if len(found) > 1:
        problems.add(f"{key}: one artifact is needed, but {len(found)} are given: {', '.join(a.uri for a in found)}.")
    if not found and is_needed:
        kind = "Model" if key == "model" else "ModelRun"
        problems.add(f"output_dict[{key!r}] is missing or empty: give one, such as [{kind}('out/{key}')].")
    return found[0].uri if found else None


def _check_examples(examples: Sequence[Examples], splits: Mapping[str, None], problems: Problems) -> None:
    payloads = {each.payload_format: each.uri for each in examples}
    if len(payloads) > 1:
        listed = ", ".join(f"`{uri}` has {payload}" for payload, uri in payloads.items())
        problems.add(f"examples: {listed}. Give artifacts of one payload format.")
    for each in examples:
        if not Path(each.uri).is_dir():
            problems.add(f"examples: there is no directory `{each.uri}`.")
            continue
        for split in splits:
            for text in _split_problems(each, split):
                problems.add(f"examples: {text}")


def _split_problems(examples: Examples, split: str) -> Iterator[str]:
    folder = Path(split_dir(examples.uri, split))
    if split not in examples.splits or not folder.is_dir():
        close = nearest(split, examples.splits)
        meant = f" Did you mean {close!r}?" if close and close != split else ""
        listed = f"Its splits are {', '.join(examples.splits)}" if examples.splits else "It has no splits"
        yield (
            f"there is no split {split!r} in `{examples.uri}`.{meant} {listed}; a split is a directory such as "
            f"Split-{split}, and train_args and eval_args name those that are used."
        )
        return
    files = [path for path in folder.iterdir() if path.is_file()]
    if not any(path.stat().st_size for path in files):
        what = f"{len(files)} empty files" if files else "no files"
        yield f"`{folder}` has {what}. Write the examples again."


def _check_outputs(run: Run, problems: Problems) -> None:
    taken = {os.path.realpath(each.uri): key for key, listed in run.inputs.items() for each in listed}
    for key, listed in run.outputs.items():
        for each in listed:
            if os.path.realpath(each.uri) in taken:
                both = f"{key} and {taken[os.path.realpath(each.uri)]} are both `{each.uri}`"
                problems.add(f"{both}: what is read would be overwritten. Give the {key} a directory of its own.")
            there = next(
                path for path in (Path(each.uri).absolute(), *Path(each.uri).absolute().parents) if path.exists()
            )
            if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
                what = "cannot be written to" if there.is_dir() else "is a file"
                problems.add(f"{key}: `{each.uri}` cannot be written: `{there}` {what}. Give another directory.")


def _patterns(examples: Sequence[Examples], splits: Sequence[str]) -> list[str]:
    return [f"{split_dir(each.uri, split)}/*" for split in splits for each in examples]


def _path(uri: str | None, key: str, problems: Problems) -> str | None:
    found = problems.caught(lambda: only_file(uri), place=key) if uri else None
    return str(found) if found else None


def _served(uri: str) -> str:
    if not Path(uri).is_dir():
        raise ArgumentError(f"there is no directory `{uri}`. Give that of a finished model.")
    return artifacts.served_model_path(uri)


def _hyperparameters(path: str | None, problems: Problems) -> dict[str, Any] | None:
    if path is None:
        return None
    try:
        found = json.loads(Path(path).read_text())
    except ValueError as error:
        problems.add(f"hyperparameters: `{path}` is no JSON: {error}. A tuning writes one JSON mapping.")
        return None
    if not isinstance(found, dict):
        problems.add(f"hyperparameters: `{path}` holds a {type(found).__name__}. A tuning writes one JSON mapping.")
        return None
    return found


def _own(custom_config: Any) -> Any:
    """What is left for the user: how to run is none of the module's business."""
    if not isinstance(custom_config, dict) or RUN_ARGS not in custom_config:
        return custom_config
    return {name: value for name, value in custom_config.items() if name != RUN_ARGS} or None


def _counts(examples: Sequence[Examples], statistics: str | None) -> ExampleCounts:
    splits = dict.fromkeys(split for each in examples for split in each.splits)
    return ExampleCounts({split: _patterns(examples, [split]) for split in splits}, statistics=statistics)
