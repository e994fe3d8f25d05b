"""What turns text into ids: read from weights, written and read again, compared."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.nlp.data.small_text import SPECIALS, WORDS, write_tokenizer_json, write_vocabulary
from trellis.errors import DataError
from trellis.nlp.data import TextSettings, build_tokenizer


def of_weights(folder: Path) -> TextSettings:
    settings = TextSettings.of_weights(folder)
    assert settings is not None
    return settings


def write_config(folder: Path, **values: Any) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(values))


def test_settings_are_the_same_after_they_were_written_and_moved(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(write_vocabulary(tmp_path / "words.txt", ["Cat", "cat"]), lower_case=False)
    settings = TextSettings.of(tokenizer, seq_length=12, text_fields=["a", "b"], label_values=["no", "yes"])
    settings.write(tmp_path / "text")
    (tmp_path / "words.txt").unlink()
    (tmp_path / "text").rename(tmp_path / "moved")
    again = TextSettings.read(tmp_path / "moved")
    assert again is not None and again.as_json() == settings.as_json()
    assert (again.seq_length, again.text_fields, again.label_values) == (12, ("a", "b"), ("no", "yes"))
    assert again.build_tokenizer().tokens("Cat cat") == ["Cat", "cat"]
    assert again.build_tokenizer().fingerprint == tokenizer.fingerprint


def test_settings_whose_file_is_missing_or_another_are_refused(tmp_path: Path) -> None:
    TextSettings.of(build_tokenizer(write_vocabulary(tmp_path / "words.txt"))).write(tmp_path / "text")
    write_vocabulary(tmp_path / "text/vocab.txt", ["other"])
    with pytest.raises(DataError, match="text/vocab.txt` is damaged, which .*text.json` describes. Copy the whole"):
        TextSettings.read(tmp_path / "text")
    (tmp_path / "text/vocab.txt").unlink()
    with pytest.raises(DataError, match="text/vocab.txt` is missing"):
        TextSettings.read(tmp_path / "text")
    (tmp_path / "text/text.json").write_text('{"file": "vocab.txt", "colour": 1}')
    with pytest.raises(DataError, match="tells in an unknown way how text is cut"):
        TextSettings.read(tmp_path / "text")
    (tmp_path / "text/text.json").write_text("[]")
    with pytest.raises(DataError, match="does not tell how text was cut"):
        TextSettings.read(tmp_path / "text")
    assert TextSettings.read(tmp_path / "nowhere") is None


@pytest.mark.parametrize("is_lower", [True, False])
def test_the_config_of_a_tokenizer_says_whether_case_and_accents_count(tmp_path: Path, is_lower: bool) -> None:
    write_vocabulary(tmp_path / "vocab.txt", ["The", "the", "é", "e", "É"])
    write_config(tmp_path, do_lower_case=is_lower, strip_accents=None)
    tokens = of_weights(tmp_path).build_tokenizer().tokens("The É")
    assert tokens == (["the", "e"] if is_lower else ["The", "É"])
    write_config(tmp_path, do_lower_case=is_lower, strip_accents=not is_lower, tokenize_chinese_chars=False)
    settings = of_weights(tmp_path)
    assert (settings.lower_case, settings.strip_accents) == (is_lower, not is_lower)
    assert settings.tokenize_chinese_chars is False
    assert settings.build_tokenizer().tokens("The É") == (["the", "é"] if is_lower else ["The", "[UNK]"])


def test_a_tokenizer_json_alone_is_enough_and_its_config_is_heeded(tmp_path: Path) -> None:
    write_tokenizer_json(tmp_path / "tokenizer.json", ["The", "the", "É"], lowercase=False)
    settings = of_weights(tmp_path)
    assert (settings.tokenization, settings.lower_case, settings.vocab_size) == ("tokenizer.json", False, 8)
    assert settings.build_tokenizer().tokens("The É [MASK]") == ["The", "É", "[MASK]"]
    write_config(tmp_path, do_lower_case=True)
    changed = of_weights(tmp_path)
    assert changed.build_tokenizer().tokens("The") == ["the"]
    changed.write(tmp_path / "text")
    kept = TextSettings.read(tmp_path / "text")
    assert kept is not None and kept.build_tokenizer().tokens("The É") == ["the", "[UNK]"]


def test_without_a_word_on_case_a_vocabulary_with_capitals_is_cased(tmp_path: Path) -> None:
    write_vocabulary(tmp_path / "vocab.txt", ["The", "[unused1]"])
    assert not of_weights(tmp_path).lower_case
    write_vocabulary(tmp_path / "vocab.txt", ["the", "[X]"])
    assert of_weights(tmp_path).lower_case


def test_a_vocabulary_outside_of_the_folder_is_never_looked_at(tmp_path: Path) -> None:
    write_vocabulary(tmp_path / "vocab.txt")
    (tmp_path / "weights").mkdir()
    assert TextSettings.of_weights(tmp_path / "weights") is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "holds no settings of a tokenizer"),
        ("[" * 100_000, "holds no settings of a tokenizer"),
        ("[]", "holds no settings"),
        ('{"do_lower_case": "no"}', "lower_case is 'no'"),
    ],
)
def test_a_broken_config_of_a_tokenizer_is_refused(tmp_path: Path, content: str, message: str) -> None:
    write_vocabulary(tmp_path / "vocab.txt")
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(DataError, match=message):
        TextSettings.of_weights(tmp_path)


def test_settings_are_compared_by_the_ids_that_they_give(tmp_path: Path) -> None:
    plain = TextSettings.of(build_tokenizer(write_vocabulary(tmp_path / "vocab.txt")))
    same = TextSettings.of(build_tokenizer(write_tokenizer_json(tmp_path / "tokenizer.json")))
    assert plain.differences(same) == []
    cased = TextSettings.of(build_tokenizer(tmp_path / "vocab.txt", lower_case=False))
    assert cased.differences(plain) == ["lower_case is false, not true", "strip_accents is false, not true"]
    other = TextSettings.of(build_tokenizer(write_vocabulary(tmp_path / "other.txt", ["word"])))
    (difference,) = other.differences(plain)
    n_tokens = len(SPECIALS) + len(WORDS)
    assert f"other.txt` has 6 tokens, which are not the {n_tokens} of" in difference


def test_a_plan_can_show_the_file_the_kind_the_size_and_the_case(tmp_path: Path) -> None:
    file = write_tokenizer_json(tmp_path / "tokenizer.json", lowercase=False)
    assert str(of_weights(tmp_path)) == f"{file}, WordPiece by tokenizer.json, 19 tokens, cased"
