"""The encoders that experiments are named after."""

from trellis.nlp.models import EncoderConfig, MobileBertEncoderConfig

ALBERT = EncoderConfig(type="albert")
MOBILEBERT = EncoderConfig(
    type="mobilebert",
    mobilebert=MobileBertEncoderConfig(
        intermediate_size=512,
        hidden_activation="relu",
        hidden_dropout_prob=0.0,
        intra_bottleneck_size=128,
        key_query_shared_bottleneck=True,
        num_feedforward_networks=4,
        normalization_type="no_norm",
        classifier_activation=False,
    ),
)
"""The student, which is what is meant by MobileBERT."""
