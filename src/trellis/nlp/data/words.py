"""Words: text cleaned and split as BERT's vocabularies expect it."""

import functools
import re
import unicodedata
from collections.abc import Iterator

_IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
_KEPT_CONTROLS = "\t\n\r"
_ASCII_WORD = re.compile(r"[!-/:-@\[-`{-~]|[^ \t\n\r!-/:-@\[-`{-~]+")
_ASCII_CONTROLS = {code: None for code in (*range(32), 127) if chr(code) not in _KEPT_CONTROLS}


def split_words(text: str, *, lower_case: bool = True, split_on_punctuation: bool = True) -> list[str]:
    """Drops control characters, splits at spaces, around ideographs and at punctuation.

    Args:
        lower_case: Whether to lower the case and to take accents away.
        split_on_punctuation: Whether punctuation marks are words of their own.
    """
    if text.isascii():
        # The same rules, for the characters that nearly all text is made of.
        text = text.translate(_ASCII_CONTROLS)
        text = text.lower() if lower_case else text
        return _ASCII_WORD.findall(text) if split_on_punctuation else text.split()
    words = "".join(map(_cleaned, text)).split()
    if lower_case:
        words = [_without_accents(word.lower()) for word in words]
    if split_on_punctuation:
        words = [part for word in words for part in _parts(word)]
    # Taking accents away may leave nothing of a word.
    return [word for word in words if word]


@functools.lru_cache(maxsize=1 << 14)
def _cleaned(character: str) -> str:
    category = unicodedata.category(character)
    if character in _KEPT_CONTROLS or category == "Zs":
        return " "
    if character in "\0\ufffd" or category in ("Cc", "Cf"):
        return ""
    code = ord(character)
    return f" {character} " if any(first <= code <= last for first, last in _IDEOGRAPHS) else character


def _without_accents(word: str) -> str:
    return "".join(letter for letter in unicodedata.normalize("NFD", word) if unicodedata.category(letter) != "Mn")


def _parts(word: str) -> Iterator[str]:
    start = 0
    for place, character in enumerate(word):
        if _is_punctuation(character):
            yield word[start:place]
            yield character
            start = place + 1
    yield word[start:]


@functools.lru_cache(maxsize=1 << 14)
def _is_punctuation(character: str) -> bool:
    is_ascii_mark = character.isascii() and not character.isalnum() and character.isprintable() and character != " "
    return is_ascii_mark or unicodedata.category(character).startswith("P")
