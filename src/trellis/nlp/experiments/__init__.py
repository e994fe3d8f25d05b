"""Experiments on language; importing this registers them, and needs no JAX."""

from pathlib import Path

from trellis.experiments import register_config_dir
from trellis.nlp.experiments import any_encoder as any_encoder
from trellis.nlp.experiments import decoders as decoders
from trellis.nlp.experiments import distillation as distillation
from trellis.nlp.experiments import embedding as embedding
from trellis.nlp.experiments import finetuning as finetuning
from trellis.nlp.experiments import multi_label as multi_label
from trellis.nlp.experiments import pretraining as pretraining
from trellis.nlp.experiments import tagging as tagging

register_config_dir("nlp", directory=Path(__file__).parent)
