"""The version of this tree, in one place: the distribution is built with it, and runs write it down."""

__version__ = "0.1.0.dev0"
