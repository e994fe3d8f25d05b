"""Experiments on language; importing this registers them, and needs no JAX."""

from pathlib import Path

from trellis.experiments import register_config_dir
from trellis.nlp.experiments import any_encoder as any_encoder
from trellis.nlp.experiments import decoders as decoders
from trellis.nlp.experiments import finetuning as finetuning
from trellis.nlp.experiments import pretraining as pretraining

register_config_dir("nlp", directory=Path(__file__).parent)
