"""Chips are known by what JAX calls them."""

import pytest

from trellis.runtime import chip_peak


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("NVIDIA H200", "989 TFLOP/s (H200, bfloat16)"),
        ("NVIDIA H100 80GB HBM3", "989 TFLOP/s (H100, bfloat16)"),
        ("NVIDIA H100 PCIe", "756 TFLOP/s (H100 PCIe, bfloat16)"),
        ("NVIDIA A100-SXM4-80GB", "312 TFLOP/s (A100, bfloat16)"),
        ("Tesla V100-SXM2-16GB", "125 TFLOP/s (V100, float16)"),
        ("NVIDIA L4", "121 TFLOP/s (L4, bfloat16)"),
        ("NVIDIA L40S", "362 TFLOP/s (L40S, bfloat16)"),
        ("TPU v4", "275 TFLOP/s (TPU v4, bfloat16)"),
        ("TPU v5 lite", "197 TFLOP/s (TPU v5e, bfloat16)"),
        ("TPU v5p", "459 TFLOP/s (TPU v5p, bfloat16)"),
        ("TPU v6 lite", "918 TFLOP/s (TPU v6e, bfloat16)"),
    ],
)
def test_a_chip_has_the_peak_of_its_maker(kind: str, text: str) -> None:
    assert str(chip_peak(kind)) == text


@pytest.mark.parametrize("kind", ["cpu", "NVIDIA L40", "NVIDIA GeForce RTX 4090", "TPU v9", ""])
def test_of_another_chip_nothing_is_known(kind: str) -> None:
    assert chip_peak(kind) is None
