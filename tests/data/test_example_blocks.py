"""Examples encoded together are those encoded one by one."""

import numpy as np
import pytest

from trellis.data import encode_example, encode_examples
from trellis.errors import ArgumentError


def test_many_examples_are_encoded_as_one_by_one() -> None:
    generator = np.random.default_rng(0)
    columns = {
        "ids": generator.integers(0, 2**15, (50, 40)),
        "small": generator.integers(0, 100, (50, 3)).astype(np.int32),
        "signed": generator.integers(-(2**62), 2**62, 50),
        "weights": generator.normal(size=(50, 2, 3)).astype(np.float32),
        "flag": generator.integers(0, 2, 50).astype(bool),
    }
    expected = [encode_example({name: column[row] for name, column in columns.items()}) for row in range(50)]
    assert encode_examples(columns) == expected


def test_what_cannot_be_encoded_is_told() -> None:
    with pytest.raises(ArgumentError, match=r"lengths of the columns are \{'a': 2, 'b': 3\}"):
        encode_examples({"a": np.zeros(2), "b": np.zeros(3)})
    with pytest.raises(ArgumentError, match=r"Column 'a' has shape \(2, 0\)"):
        encode_examples({"a": np.zeros((2, 0))})
    with pytest.raises(ArgumentError, match="Column 'a' has dtype"):
        encode_examples({"a": np.array(["x"])})
