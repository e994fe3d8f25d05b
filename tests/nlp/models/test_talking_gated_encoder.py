"""The gin file that comes along: it names blocks that there are, and an encoder is built of them."""

import os
import subprocess
import sys
from pathlib import Path

import trellis

SOURCE = Path(trellis.__file__).parents[1]
GIN_FILE = SOURCE / "trellis" / "nlp" / "experiments" / "talking_gated_encoder.gin"
# In a process of its own: what is registered with gin stays registered.
PROGRAM = """
import sys
import gin, jax, numpy
from trellis.nlp import models
build_encoder = gin.external_configurable(models.build_encoder, name="build_encoder")
for name in ("MultiHeadAttention", "TalkingHeadsAttention", "FeedForward", "GatedFeedForward"):
    gin.external_configurable(getattr(models, name), name=name)
gin.parse_config_file(sys.argv[1])
encoder = build_encoder(models.EncoderConfig(bert={"num_layers": 1}))
ids = numpy.ones((1, 4), int)
batch = {"input_word_ids": ids, "input_mask": ids, "input_type_ids": ids}
layer = jax.eval_shape(encoder.init, jax.random.key(0), batch)["params"]["layer_0"]
assert "before_softmax" in layer["attention"] and "gate" in layer["feedforward"], layer
"""


def test_the_gin_file_builds_an_encoder_of_talking_heads_and_gates() -> None:
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    subprocess.run([sys.executable, "-c", PROGRAM, str(GIN_FILE)], env=environment, check=True)
