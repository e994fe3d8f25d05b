"""Where the settings of a task's text come from, and what in its config says otherwise."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from trellis.config import DEFAULT, Origin, Problem, merge, origin_of, raise_if_any, read_file, setting_at
from trellis.data import matching_paths, patterns_in
from trellis.extensions import newest_file
from trellis.nlp.data import (
    TEXT,
    VOCABULARY_NAMES,
    QADataConfig,
    TextSettings,
    beside_records,
    build_tokenizer,
    is_of_questions,
)
from trellis.tasks import TaskConfig

SIDES = ("train_data", "validation_data")
VOCABULARY_FIELDS = ("vocab_file", "vocab_file_path")
"""The names of a vocabulary in the configs of data."""
_LOWER_CASE_FIELDS = ("lower_case", "do_lower_case")


@dataclass(frozen=True)
class TextSource:
    """The settings of a task's text, and what they belong to."""

    settings: TextSettings
    owner: Literal["run", "weights", "pretraining", "records", "config"]

    def __str__(self) -> str:
        """What a plan shows."""
        words = {"run": "kept by the run", "weights": "of the weights", "pretraining": "of the pretraining"}
        words |= {"records": "of the records"}
        return ", ".join(filter(None, (str(self.settings), words.get(self.owner))))

    @property
    def place(self) -> str:
        """What the settings belong to, for errors."""
        folder = self.settings.vocab_file.parent
        run = folder.parent if folder.name == TEXT else folder
        places = {"run": f"the run in `{run}`", "pretraining": f"the run in `{run}`"}
        places |= {"weights": f"the weights in `{folder}`", "records": f"the records beside `{folder}`"}
        return places.get(self.owner, f"the vocabulary `{self.settings.vocab_file}`")


def find_text(config: TaskConfig, *, run_dir: str) -> TextSource | None:
    """The settings of the text of a task; None if they are not known, because its data came as ids.

    A run that has begun keeps its own. Else they belong to the records that it is trained on, to the weights that it
    starts from, or to the vocabulary that the config of its data names: the first that is there.

    Args:
        run_dir: The directory of the run; empty if there is none.
    """
    if run_dir and newest_file(Path(run_dir)) is not None:
        kept = _of_run(Path(run_dir))
        if kept is not None:
            return TextSource(kept, "run")
    weights = _of_weights(config)
    records = next((found for side in SIDES if (found := _of_records(config, side)) is not None), None)
    # Records that are of other text than the weights are told of as a problem.
    if records is not None and (weights is None or not records.differences(weights.settings)):
        return TextSource(records, "records")
    if weights is not None:
        return weights
    named = next((found for side in SIDES if (found := _named(config, side)) is not None), None)
    return None if named is None else TextSource(named, "config")


def with_text(config: TaskConfig, source: TextSource) -> TaskConfig:
    """The config of a task with what the settings of its text say in the place of defaults."""
    filled = config
    for path, value in _decided(config, source):
        if _value(config, path) != value and origin_of(config, path).is_left_open:
            filled = config.replace() if filled is config else filled
            raise_if_any(merge(filled, setting_at(path, value, Origin(str(source.settings.vocab_file)))))
    return filled


def text_problems(config: TaskConfig, source: TextSource) -> Iterator[Problem]:
    """Yields what in the config of a task contradicts the settings of its text."""
    for path, value in _decided(config, source):
        own = _value(config, path)
        if own != value:
            place = "the records" if path.endswith("seq_length") else source.place
            message = f"task.{path} is {_shown(own)}, but {_shown(value)} for {place}."
            advice = f"Leave it out, or set task.{path}={_shown(value)}."
            yield Problem(message, origin_of(config, path), f"task.{path}", advice)


def data_problems(config: TaskConfig, source: TextSource, *, side: str) -> Iterator[Problem]:
    """Yields what is wrong if the vocabulary that a side's data names, or its records, are not of the same text."""
    named = _named(config, side)
    if named is not None and not named.has_tokens_of(source.settings):
        path = f"{side}.{_vocabulary_field(config, side)}"
        message = f"task.{path} names {named.vocab_size:,} tokens that are not the {source.settings.vocab_size:,} of "
        advice = f"Leave it out: {source.settings.vocab_file} is used."
        if source.owner in ("weights", "pretraining"):
            advice += " Another vocabulary goes into a copy of the weights' directory."
        yield Problem(f"{message}{source.place}.", origin_of(config, path), f"task.{path}", advice)
    records = _of_records(config, side)
    differences = [] if records is None else records.differences(source.settings)
    if differences:
        path = f"{side}.input_path"
        message = f"task.{path}: the records were made otherwise than {source.place}: {'; '.join(differences)}."
        file = source.settings.vocab_file
        how = f"--vocab_file={file.parent}" if source.owner == "weights" else f"{file} and --do_lower_case as it says"
        advice = f"Make them again with {how}."
        yield Problem(message, origin_of(config, path), f"task.{path}", advice)


def size_problem(config: TaskConfig, source: TextSource, *, n_known: int) -> Problem | None:
    """What is wrong if weights of Hugging Face's know another number of tokens than the vocabulary beside them has.

    They may know some more, to fill up a multiple of a power of two, or as many as there are if the config names the
    vocabulary.
    """
    n_tokens, file = source.settings.vocab_size, source.settings.vocab_file
    most_unused = min(1024, n_known & -n_known)
    is_named = any(_named(config, side) is not None for side in SIDES)
    if source.owner != "weights" or 0 <= n_known - n_tokens < most_unused or (n_tokens < n_known and is_named):
        return None
    message = f"`{file}` has {n_tokens:,} tokens, but the weights beside it know {n_known:,}: it is of another model."
    advice = "Put the vocabulary of the weights into their directory."
    if n_tokens < n_known and (field := _vocabulary_field(config, "train_data")):
        advice += f" If it is this one, name it: task.train_data.{field}={file}"
    return Problem(message, DEFAULT, advice=advice)


def silent_records(config: TaskConfig) -> Iterator[str]:
    """Yields a line for each side whose records do not say how they were made."""
    for side in SIDES:
        data = getattr(config, side)
        paths = patterns_in(data.input_path)
        has_questions = isinstance(data, QADataConfig) and all(map(is_of_questions, paths))
        is_text = has_questions or (_vocabulary_field(config, side) and not isinstance(data, QADataConfig))
        files = matching_paths(paths[0]) if paths else []
        if files and not is_text and _of_records(config, side) is None:
            name = beside_records(files[0]).name
            yield (
                f"`{paths[0]}` does not say how it was made: there is no {name} beside it. Whether text that the model "
                "is asked is cut alike is not known. `trellis data` writes it with the records."
            )


def for_run(source: TextSource, config: TaskConfig) -> TextSettings:
    """The settings of a text with what the config of a task says of the rows that it comes from."""
    data = config.train_data.as_dict()
    settings = source.settings
    fields = data.get("text_fields") or settings.text_fields
    labels = data.get("label_values") or settings.label_values
    return replace(
        settings,
        seq_length=data.get("seq_length", settings.seq_length),
        text_fields=tuple(fields),
        label_values=None if labels is None else tuple(labels),
    )


def _decided(config: TaskConfig, source: TextSource) -> Iterator[tuple[str, Any]]:
    """Yields the path of each value in the config of data that the settings decide, and the value."""
    settings = source.settings
    family = settings.build_tokenizer().family
    for side in SIDES:
        values = getattr(config, side).as_dict()
        for name in _LOWER_CASE_FIELDS:
            if name in values:
                yield f"{side}.{name}", settings.lower_case
        if "tokenization" in values and family in VOCABULARY_NAMES:
            yield f"{side}.tokenization", family
        # A run that has begun can be asked whatever has become of its data.
        records = None if source.owner == "run" else _of_records(config, side)
        if records is not None and records.seq_length is not None:
            yield f"{side}.seq_length", records.seq_length


def _of_records(config: TaskConfig, side: str) -> TextSettings | None:
    """What the records of a side were made with, if that is known."""
    patterns = patterns_in(getattr(config, side).input_path)
    return TextSettings.of_records(file for pattern in patterns for file in matching_paths(pattern))


def _of_weights(config: TaskConfig) -> TextSource | None:
    """What belongs to the weights that a run starts from, out of their own directory."""
    values = config.as_dict()
    source = values.get("hub_module_url") or values.get("init_checkpoint")
    if not source:
        return None
    folder = Path(source)
    # A checkpoint file lies in the directory of its run, or in one below that.
    above = () if Path(folder, "config.json").is_file() else folder.absolute().parents[:2]
    run = next((place for place in (folder, *above) if Path(place, "params.yaml").is_file()), None)
    settings = TextSettings.of_weights(folder) if run is None else _of_run(run)
    return None if settings is None else TextSource(settings, "weights" if run is None else "pretraining")


def _of_run(run: Path) -> TextSettings | None:
    return TextSettings.read(run / TEXT) or _kept_before(run)


def _kept_before(run: Path) -> TextSettings | None:
    """What a run kept before it kept its settings: a vocabulary; the rules are in its config."""
    file = next((run / name for name in VOCABULARY_NAMES.values() if (run / name).is_file()), None)
    if file is None:
        return None
    setting, problems = read_file(run / "params.yaml")
    raise_if_any(problems)
    values: Any = setting
    for name in ("task", "train_data"):
        values = values.value.get(name) if values is not None and isinstance(values.value, dict) else None
    data = {} if values is None else {name: str(item.value) for name, item in values.value.items()}
    is_cased = any(data.get(name) == "false" for name in _LOWER_CASE_FIELDS)
    tokenization = data.get("tokenization", "WordPiece")
    return TextSettings.of(build_tokenizer(file, tokenization=tokenization, lower_case=not is_cased))


def _vocabulary_field(config: TaskConfig, side: str) -> str | None:
    """What the config of a side's data calls a vocabulary; None if it has none."""
    values = getattr(config, side).as_dict()
    return next((name for name in VOCABULARY_FIELDS if name in values), None)


def _named(config: TaskConfig, side: str) -> TextSettings | None:
    """What goes with the vocabulary that the config of a side's data names; None if it names none that is there."""
    field = _vocabulary_field(config, side)
    values = getattr(config, side).as_dict()
    # A file that is not there is an error when it is to be read.
    if field is None or not Path(values[field]).is_file():
        return None
    lower_case = next((values[name] for name in _LOWER_CASE_FIELDS if name in values), True)
    return TextSettings.of(build_tokenizer(values[field], tokenization=values["tokenization"], lower_case=lower_case))


def _value(config: TaskConfig, path: str) -> Any:
    side, _, name = path.partition(".")
    return getattr(getattr(config, side), name)


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
