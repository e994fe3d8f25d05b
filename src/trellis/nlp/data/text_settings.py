"""All that turns text into ids, as one object: read from weights and records, kept with a run, and exported with it."""

import functools
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from trellis.aliases import JSON
from trellis.disk import checksum, write_whole
from trellis.errors import DataError
from trellis.json_text import parse_json
from trellis.nlp.data.older_tokenizers import OLDER_NAMES, as_tokenizer_json
from trellis.nlp.data.tokenizer import (
    JsonTokenizer,
    SentencePieceTokenizer,
    Tokenizer,
    WordPieceTokenizer,
)

TEXT = "text"
"""The folder in that of a run which holds the settings, and what JSON calls them beside other things."""
VOCABULARY_NAMES = {"tokenizer.json": "tokenizer.json", "WordPiece": "vocab.txt", "SentencePiece": "spiece.model"}
"""What the file of each tokenization is called: first the one that says most."""
_SETTINGS = "text.json"
_CONFIG = "tokenizer_config.json"
_CAPITAL = re.compile("[A-Z]")
_IN_BRACKETS = re.compile(r"\[.*\]")


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """What turns text into ids: how it is cut, by which file, which rows it comes from and how long it may be.

    `write` and `read` take a folder: `text.json` and the file.

    Example:
        settings = TextSettings.of(build_tokenizer("vocab.txt", lower_case=False), seq_length=128)
        settings.write("runs/mrpc/text")
        TextSettings.read("runs/mrpc/text").build_tokenizer().encode(["Polish or polish?"])
    """

    vocab_file: Path
    tokenization: str
    """`WordPiece` or `SentencePiece`, by the published rules, or `tokenizer.json`, by the package that wrote it."""
    lower_case: bool
    strip_accents: bool
    tokenize_chinese_chars: bool
    vocab_size: int
    """How many tokens the file has."""
    checksum: Mapping[str, int]
    """Of the file."""
    seq_length: int | None = None
    """How many tokens an example has room for; None if that is left to the config of a run."""
    text_fields: tuple[str, ...] = ()
    """The columns that the sentences come from, in their order."""
    label_values: tuple[str, ...] | None = None
    """The names of the classes, in their order."""

    @classmethod
    def of(
        cls,
        tokenizer: Tokenizer,
        *,
        seq_length: int | None = None,
        text_fields: Sequence[str] = (),
        label_values: Sequence[str] | None = None,
    ) -> Self:
        """The settings of a tokenizer, and of the rows that it is for."""
        return cls(
            vocab_file=tokenizer.vocab_file,
            tokenization=tokenizer.tokenization,
            lower_case=tokenizer.lower_case,
            strip_accents=tokenizer.strip_accents,
            tokenize_chinese_chars=tokenizer.tokenize_chinese_chars,
            vocab_size=tokenizer.vocab_size,
            checksum=checksum(tokenizer.vocab_file),
            seq_length=seq_length,
            text_fields=tuple(text_fields),
            label_values=None if label_values is None else tuple(label_values),
        )

    @classmethod
    def of_weights(cls, directory: str | os.PathLike[str]) -> Self | None:
        """What belongs to the weights in a directory of Hugging Face's; None if they came without a vocabulary.

        Nothing outside of the directory is looked at; older files of RoBERTa and XLM-R are turned into a
        `tokenizer.json` in the user's cache. `tokenizer_config.json` is heeded as `transformers` does it. If
        nothing says whether case counts, it does for a vocabulary that has words in capitals.
        """
        folder = Path(directory)
        rules = _rules_beside(folder)
        name = next((name for name in VOCABULARY_NAMES.values() if (folder / name).is_file()), None)
        if name is None:
            older = next((folder / name for name in OLDER_NAMES if (folder / name).is_file()), None)
            return None if older is None else cls.of(JsonTokenizer(as_tokenizer_json(older)))
        if name == VOCABULARY_NAMES["tokenizer.json"]:
            return cls.of(JsonTokenizer(folder / name, **rules))
        if name == VOCABULARY_NAMES["SentencePiece"]:
            rules.pop("tokenize_chinese_chars", None)
            return cls.of(SentencePieceTokenizer(folder / name, **rules))
        tokenizer = WordPieceTokenizer(folder / name, **rules)
        if "lower_case" not in rules and _has_capitals(tokenizer.all_tokens):
            tokenizer = WordPieceTokenizer(folder / name, **rules, lower_case=False)
        return cls.of(tokenizer)

    @classmethod
    def of_records(cls, files: Iterable[Path]) -> Self | None:
        """What records were made with; None if nothing lies beside them that tells it."""
        settings = [found for file in files if (found := cls.read(beside_records(file))) is not None]
        for other in settings[1:]:
            if other.as_json() != settings[0].as_json():
                folders = f"`{settings[0].vocab_file.parent}` and `{other.vocab_file.parent}`"
                raise DataError(f"Records were made with different settings: {folders}. Make them again, all alike.")
        return settings[0] if settings else None

    @classmethod
    def read(cls, directory: str | os.PathLike[str]) -> Self | None:
        """The settings in a folder that `write` has made; None if there are none."""
        file = Path(directory, _SETTINGS)
        if not file.is_file():
            return None
        try:
            values = parse_json(file.read_bytes())
            name = values["file"]
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(f"`{file}` does not tell how text was cut ({error!r}). Copy the directory again.") from None
        return cls.of_json(values, vocab_file=Path(directory, name), place=str(file))

    @classmethod
    def of_json(cls, values: Mapping[str, Any], *, vocab_file: Path, place: str) -> Self:
        """The settings that `as_json` has returned.

        Args:
            vocab_file: Where their file lies now.
            place: Where the settings were found, for errors.
        """
        known = {field.name for field in fields(cls)} - {"vocab_file"}
        try:
            settings = cls(vocab_file=vocab_file, **{name: values[name] for name in known})
        except (KeyError, TypeError) as error:
            way_out = "Install the Trellis that wrote it, or make it again."
            raise DataError(f"`{place}` tells in an unknown way how text is cut ({error!r}). {way_out}") from None
        if not vocab_file.is_file() or checksum(vocab_file) != settings.checksum:
            state = "is damaged" if vocab_file.is_file() else "is missing"
            raise DataError(f"`{vocab_file}` {state}, which `{place}` describes. Copy the whole directory again.")
        labels = settings.label_values
        return replace(
            settings, text_fields=tuple(settings.text_fields), label_values=None if labels is None else tuple(labels)
        )

    @property
    def file_name(self) -> str:
        """The name that the file gets wherever the settings go."""
        return VOCABULARY_NAMES[self.tokenization]

    def as_json(self) -> dict[str, JSON]:
        """The settings, as JSON has them, with the name of the file in the place of its path."""
        values: dict[str, Any] = {"file": self.file_name, **asdict(self)}
        del values["vocab_file"]
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def write(self, directory: str | os.PathLike[str]) -> None:
        """Writes the settings and their file into a folder: what `read` reads, wherever it is moved."""
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        content = self.vocab_file.read_bytes()
        write_whole(folder / self.file_name, content)
        # The settings come last: where they are, all is.
        write_whole(folder / _SETTINGS, (json.dumps(self.as_json(), indent=2, ensure_ascii=False) + "\n").encode())

    def build_tokenizer(self) -> Tokenizer:
        """Returns the tokenizer; the same one, if it is asked for again."""
        return _build(self.vocab_file, self.tokenization, *self._rules, tuple(self.checksum.items()))

    def with_file(self, vocab_file: str | os.PathLike[str]) -> Self:
        """The same rules with another vocabulary."""
        file = as_tokenizer_json(vocab_file)
        tokenization = "tokenizer.json" if file.suffix == ".json" else self.build_tokenizer().family
        tokenizer = _build.__wrapped__(file, tokenization, *self._rules, ())
        changed = type(self).of(tokenizer)
        return replace(
            changed, seq_length=self.seq_length, text_fields=self.text_fields, label_values=self.label_values
        )

    @property
    def _rules(self) -> tuple[bool, bool, bool]:
        return self.lower_case, self.strip_accents, self.tokenize_chinese_chars

    def differences(self, other: "TextSettings") -> list[str]:
        """In what the ids of two settings differ for plain text, in words; empty if they are the same."""
        ours, theirs = self.build_tokenizer().family, other.build_tokenizer().family
        lines = [] if ours == theirs else [f"words are cut by {ours}, not by {theirs}"]
        if not self.has_tokens_of(other):
            counts = f"has {self.vocab_size:,} tokens, which are not the {other.vocab_size:,} of"
            lines.append(f"`{self.vocab_file}` {counts} `{other.vocab_file}`")
        rules = {name: (getattr(self, name), getattr(other, name)) for name in ("lower_case", "strip_accents")}
        lines += [f"{name} is {str(a).lower()}, not {str(b).lower()}" for name, (a, b) in rules.items() if a != b]
        return lines

    def has_tokens_of(self, other: "TextSettings") -> bool:
        """Whether both have the same tokens with the same ids."""
        if dict(self.checksum) == dict(other.checksum):
            return True
        return list(self.build_tokenizer().all_tokens) == list(other.build_tokenizer().all_tokens)

    def __str__(self) -> str:
        """What a plan shows: the file, the kind, the size, and whether case counts."""
        family = self.build_tokenizer().family
        kind = family if self.tokenization == family else f"{family} by {self.tokenization}"
        case = "uncased" if self.lower_case else "cased"
        accents = (
            "" if self.strip_accents == self.lower_case else f", accents {'dropped' if self.strip_accents else 'kept'}"
        )
        return f"{self.vocab_file}, {kind}, {self.vocab_size:,} tokens, {case}{accents}"


def beside_records(path: str | os.PathLike[str]) -> Path:
    """The folder that tells how records were made, in a file or a directory of columns."""
    records = Path(path)
    return records.with_name(f"{records.name}.{TEXT}")


@functools.lru_cache(maxsize=4)
def _build(
    vocab_file: Path,
    tokenization: str,
    lower_case: bool,
    strip_accents: bool,
    ideographs: bool,
    content: tuple[tuple[str, int], ...],
) -> Tokenizer:
    """Returns a tokenizer; `content` stands for that of the file, which may change."""
    if tokenization == SentencePieceTokenizer.tokenization:
        return SentencePieceTokenizer(vocab_file, lower_case=lower_case, strip_accents=strip_accents)
    kind = JsonTokenizer if tokenization == JsonTokenizer.tokenization else WordPieceTokenizer
    return kind(vocab_file, lower_case=lower_case, strip_accents=strip_accents, tokenize_chinese_chars=ideographs)


def _rules_beside(folder: Path) -> dict[str, bool]:
    """Those of BERT's rules that the `tokenizer_config.json` in a folder has."""
    file = folder / _CONFIG
    if not file.is_file():
        return {}
    try:
        values = parse_json(file.read_bytes())
        names = {"lower_case": "do_lower_case", "strip_accents": "strip_accents"}
        names |= {"tokenize_chinese_chars": "tokenize_chinese_chars"}
        rules = {ours: values[theirs] for ours, theirs in names.items() if values.get(theirs) is not None}
        rules |= {} if values.get("keep_accents") is None else {"strip_accents": not values["keep_accents"]}
    except (ValueError, AttributeError) as error:
        raise DataError(f"`{file}` holds no settings of a tokenizer ({error}). Copy the file again.") from None
    wrong = [f"{name} is {value!r}" for name, value in rules.items() if not isinstance(value, bool)]
    if wrong:
        raise DataError(f"`{file}`: {', '.join(wrong)}, but it is true or false. Correct the file.")
    return rules


def _has_capitals(tokens: Sequence[str]) -> bool:
    return any(_CAPITAL.search(token) and not _IN_BRACKETS.fullmatch(token) for token in tokens)
