"""`python -m trellis`: the command."""

from trellis.cli.main import command

command()
