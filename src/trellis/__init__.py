"""Trellis: a training library for JAX."""
