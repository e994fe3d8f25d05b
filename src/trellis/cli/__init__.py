"""The `trellis` command: flags to calls."""
