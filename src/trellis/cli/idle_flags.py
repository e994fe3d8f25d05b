"""Flags of the published driver that have nothing to do here: accepted, so that its command lines work as they are."""

import argparse
from collections.abc import Iterator, Mapping

from trellis.cli.words import Parser

_HUB = "models from elsewhere are named by task.hub_module_url or task.init_checkpoint"
_TPU = "JAX finds the TPUs of its host itself"

IDLE: Mapping[str, str] = {
    "tpu": _TPU,
    "tpu_platform": _TPU,
    "tf_data_service": "each process reads its own share of the data",
    "tfhub_handle": _HUB,
    "tfhub_cache_dir": _HUB,
    "tflex_output_uri": "all output goes to --model_dir",
    "enable_async_checkpointing": "checkpoint files are always written in the background",
    "noenable_async_checkpointing": "checkpoint files are always written in the background",
    "alsologtostderr": "what a run tells goes to stdout, and errors to stderr",
}
"""By name, why it has no effect."""


def add_idle_flags(parser: Parser) -> None:
    """Adds them, out of sight."""
    for name in IDLE:
        parser.add_argument(f"--{name}", nargs="?", const="", help=argparse.SUPPRESS)


def idle_flags(flags: argparse.Namespace) -> Iterator[str]:
    """Yields what to say of each that was given."""
    for name, reason in IDLE.items():
        if getattr(flags, name) is not None:
            yield f"--{name} has no effect: {reason}."
