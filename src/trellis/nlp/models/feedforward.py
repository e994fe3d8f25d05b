"""Feedforward blocks: what a layer does to each token by itself."""

import flax.linen as nn
import jax

from trellis.nlp.models.layers import activation, dense


class FeedForward(nn.Module):
    """A wide dense layer, an activation, and a dense layer back to `width`.

    Example:
        outputs = FeedForward(width=768, intermediate_size=3072, activation="gelu")(hidden)
    """

    width: int
    intermediate_size: int
    activation: str = "gelu"
    initializer_range: float = 0.02

    def setup(self) -> None:
        """Makes the two layers."""
        self.intermediate = dense(self.intermediate_size, initializer_range=self.initializer_range)
        self.output = dense(self.width, initializer_range=self.initializer_range)

    def __call__(self, x: jax.Array) -> jax.Array:
        """The new hidden states."""
        return self.output(activation(self.activation)(self.intermediate(x)))


class GatedFeedForward(nn.Module):
    """A feedforward block whose wide activations are multiplied with a second, linear layer: the gate."""

    width: int
    intermediate_size: int
    activation: str = "gelu"
    initializer_range: float = 0.02

    def setup(self) -> None:
        """Makes the three layers."""
        self.intermediate = dense(self.intermediate_size, initializer_range=self.initializer_range)
        self.gate = dense(self.intermediate_size, initializer_range=self.initializer_range)
        self.output = dense(self.width, initializer_range=self.initializer_range)

    def __call__(self, x: jax.Array) -> jax.Array:
        """The new hidden states."""
        return self.output(activation(self.activation)(self.intermediate(x)) * self.gate(x))
