"""How XLA compiles in tests, which compile more than they compute."""

from importlib.metadata import version

# Optimising code would take half of their time.
QUICK = "--xla_backend_optimization_level=0"
if version("jax").startswith("0.10."):
    # So would XLA's newer way to fuse, half of what is left; later versions do not know the flag, and end at it.
    QUICK += " --xla_cpu_use_fusion_emitters=false"
