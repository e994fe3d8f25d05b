"""What chips can do at most, as their makers say."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Peak:
    """The most floating-point operations a second of one device, for dense products."""

    chip: str
    flops: float
    dtype: str = "bfloat16"

    def __str__(self) -> str:
        return f"{self.flops / 1e12:g} TFLOP/s ({self.chip}, {self.dtype})"


# By what JAX calls a device, in parts; the first that fits counts, so that longer names come before shorter ones.
_PEAKS = {
    "GB200": Peak("GB200", 2500e12),
    "B200": Peak("B200", 2250e12),
    "GH200": Peak("GH200", 989e12),
    "H200": Peak("H200", 989e12),
    "H100 PCIe": Peak("H100 PCIe", 756e12),
    "H100 NVL": Peak("H100 NVL", 835e12),
    "H100": Peak("H100", 989e12),
    "A100": Peak("A100", 312e12),
    "A10G": Peak("A10G", 70e12),
    "L40S": Peak("L40S", 362e12),
    "L4": Peak("L4", 121e12),
    "V100": Peak("V100", 125e12, "float16"),
    "T4": Peak("T4", 65e12, "float16"),
    "TPU v6": Peak("TPU v6e", 918e12),
    "TPU v5p": Peak("TPU v5p", 459e12),
    "TPU v5 lite": Peak("TPU v5e", 197e12),
    "TPU v5e": Peak("TPU v5e", 197e12),
    "TPU v5": Peak("TPU v5p", 459e12),
    "TPU v4": Peak("TPU v4", 275e12),
}


def chip_peak(device_kind: str) -> Peak | None:
    """The peak of a device by its `device_kind`, such as `NVIDIA H200`; None if it is not known."""
    words = f" {device_kind} ".replace("-", " ")
    return next((peak for name, peak in _PEAKS.items() if f" {name}" in words and _ends(words, name)), None)


def chip_names() -> list[str]:
    """The chips whose peak is known."""
    return list(dict.fromkeys(peak.chip for peak in _PEAKS.values()))


def _ends(words: str, name: str) -> bool:
    """Whether a name is a whole word: an L40 is no L4."""
    rest = words.partition(f" {name}")[2]
    return not rest[:1].isalnum() or name.startswith("TPU")
