"""Text that every machine has, as sequences of bytes."""

import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

import trellis
from trellis.errors import ArgumentError, DataError
from trellis.nlp.data import byte_sequences, load_local_corpus


def test_the_corpus_is_english_of_some_size_and_nothing_is_imported_for_it() -> None:
    sysconfig.get_path("stdlib")  # loads what it knows of this machine, once
    modules = set(sys.modules)
    text = load_local_corpus()
    assert len(text) > 500_000
    assert text.count(" the ") > 1_000
    assert "\0" not in text
    assert set(sys.modules) == modules


def test_documentation_comes_in_the_order_in_which_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "b.py").write_text('"""Fourth."""\n')
    (tmp_path / "a.py").write_text(
        '"""First,\n    with two lines."""\nraise RuntimeError("imported")\n'
        'class C:\n    """Second."""\n    async def f(self):\n        """Third."""\n'
        'def g():\n    return """not this"""\n'
    )
    assert load_local_corpus(tmp_path) == "First,\nwith two lines.\n\nSecond.\n\nThird.\n\nFourth."


def test_a_folder_without_documentation_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"No documentation strings were found in {tmp_path}"):
        load_local_corpus(tmp_path)


def test_every_byte_is_used_once_and_the_held_out_sequences_are_spread() -> None:
    text = "".join(map(chr, range(100, 200)))
    train, validation = byte_sequences(text, length=4, validation_share=0.1)
    assert (train.dtype, validation.dtype) == (np.int32, np.int32)
    assert (train.shape, validation.shape) == ((39, 4), (4, 4))
    tokens = text.encode()
    cuts = [list(tokens[start : start + 4]) for start in range(0, 172, 4)]
    assert sorted([*train.tolist(), *validation.tolist()]) == sorted(cuts)
    assert [cuts.index(sequence) for sequence in validation.tolist()] == [0, 10, 21, 32]


def test_sequences_make_a_stream() -> None:
    train, _ = byte_sequences("to be or not to be " * 20, length=8)
    inputs, targets = trellis.ExampleStream((train, train), batch_size=2).batch(0)
    assert inputs.shape == (2, 8)
    np.testing.assert_array_equal(inputs, targets)


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(DataError, match="A text of 5 bytes is too short: it gives 2 sequences of 2 bytes"):
        byte_sequences("short", length=2)
    with pytest.raises(ArgumentError, match="validation_share is 1.5"):
        byte_sequences("short", length=2, validation_share=1.5)
    with pytest.raises(ArgumentError, match="length is 0"):
        byte_sequences("short", length=0)
