"""The settings of encoders: the published names and numbers, read without JAX."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import trellis
from trellis.errors import ConfigError
from trellis.nlp.models import EncoderConfig, PretrainerConfig


def test_the_defaults_are_the_published_ones() -> None:
    bert, albert, mobilebert = EncoderConfig().bert, EncoderConfig().albert, EncoderConfig().mobilebert
    assert EncoderConfig().type == "bert"
    assert (bert.vocab_size, bert.hidden_size, bert.num_layers, bert.num_attention_heads) == (30522, 768, 12, 12)
    assert (bert.intermediate_size, bert.dropout_rate, bert.attention_dropout_rate) == (3072, 0.1, 0.1)
    assert (albert.vocab_size, albert.embedding_width, albert.dropout_rate) == (30000, 128, 0.0)
    assert (mobilebert.word_embed_size, mobilebert.num_blocks, mobilebert.intermediate_size) == (128, 24, 4096)
    assert (mobilebert.intra_bottleneck_size, mobilebert.normalization_type) == (1024, "layer_norm")


def test_a_published_model_file_is_read_as_it_is() -> None:
    config = PretrainerConfig()
    config.override(
        {
            "encoder": {"type": "albert", "albert": {"num_layers": 12, "dropout_rate": 0.0, "vocab_size": 30000}},
            "cls_heads": [{"inner_dim": 768, "num_classes": 2, "dropout_rate": 0.1, "name": "next_sentence"}],
        }
    )
    assert config.encoder.get() is config.encoder.albert
    assert (config.cls_heads[0].name, config.cls_heads[0].activation) == ("next_sentence", "tanh")


def test_two_pretrainers_do_not_share_their_heads() -> None:
    first, second = PretrainerConfig(), PretrainerConfig()
    first.override({"cls_heads": [{"name": "next_sentence"}]})
    assert second.cls_heads == []


def test_an_unknown_activation_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match="gelu_exact"):
        EncoderConfig(bert={"hidden_activation": "gleu"})


def test_the_settings_need_no_jax() -> None:
    program = (
        "import sys; from trellis.nlp.models import EncoderConfig, PretrainerConfig; "
        "EncoderConfig(); PretrainerConfig(); assert 'jax' not in sys.modules"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(trellis.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
