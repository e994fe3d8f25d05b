"""Text is cleaned and split by the published rules."""

import pytest

from trellis.nlp.data.words import split_words


def test_spaces_punctuation_and_case_are_taken_apart() -> None:
    text = " \tHeLLo!how  \n Are yoU?  "
    assert split_words(text) == ["hello", "!", "how", "are", "you", "?"]
    assert split_words(text, lower_case=False) == ["HeLLo", "!", "how", "Are", "yoU", "?"]
    assert split_words(text, split_on_punctuation=False) == ["hello!how", "are", "you?"]


def test_accents_go_with_the_case_only() -> None:
    assert split_words("Héllo") == ["hello"]
    assert split_words("Héllo", lower_case=False) == ["Héllo"]
    assert split_words("a \u0301 b") == ["a", "b"]


def test_ideographs_are_words_of_their_own() -> None:
    assert split_words("ah\u535a\u63a8zz") == ["ah", "\u535a", "\u63a8", "zz"]


@pytest.mark.parametrize("space", [" ", "\t", "\r", "\n", "\u00a0", "\u2003", "\u2028"])
def test_these_are_spaces(space: str) -> None:
    assert split_words(f"a{space}b") == ["a", "b"]


@pytest.mark.parametrize("control", ["\x00", "\x05", "\x0b", "\x7f", "\u200b", "\u00ad", "\ufffd"])
def test_these_are_dropped(control: str) -> None:
    assert split_words(f"a{control}b") == ["ab"]


@pytest.mark.parametrize("mark", ["-", "$", "`", ".", "~", "^", "\u2013", "\u3002", "\u00bf"])
def test_these_are_punctuation(mark: str) -> None:
    assert split_words(f"a{mark}b") == ["a", mark, "b"]


@pytest.mark.parametrize("letter", ["A", "\u00df", "\U0001f4a9", "\ue000", "\u20ac"])
def test_these_are_part_of_a_word(letter: str) -> None:
    assert split_words(f"a{letter}b", lower_case=False) == [f"a{letter}b"]


def test_every_ascii_text_is_split_as_the_general_rules_split_it() -> None:
    for code in range(128):
        text = f"a{chr(code)}B"
        # A character beyond ASCII beside it brings the general rules about.
        assert split_words(text) == split_words(f"{text} \u0436")[:-1], code
        assert split_words(text, lower_case=False) == split_words(f"{text} \u0436", lower_case=False)[:-1], code
        assert (
            split_words(text, split_on_punctuation=False)
            == split_words(f"{text} \u0436", split_on_punctuation=False)[:-1]
        ), code
