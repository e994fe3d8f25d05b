r"""Penguins, made up: four measures and a species, as the artifacts that a `run_fn` trains on.

python examples/modules/penguins.py runs/penguins
trellis run --module_file=examples/modules/flax_module.py --examples=runs/penguins/examples \
      --schema=runs/penguins/schema --model=runs/penguins/model --train_steps=300
"""

import argparse
from pathlib import Path

import numpy as np

from trellis.data import RecordWriter, encode_example

FEATURES = ("culmen_length_mm", "culmen_depth_mm", "flipper_length_mm", "body_mass_g")
LABEL = "species"

# For each of three species the means of the four measures, and how far they scatter.
_MEANS = np.array([[38.8, 18.3, 190, 3700], [48.8, 18.4, 196, 3730], [47.5, 15.0, 217, 5080]])
_SCATTER = np.array([2.7, 1.1, 6.5, 460])


def write_penguins(folder: Path, *, n_train: int = 240, n_eval: int = 96, seed: int = 0) -> None:
    """Writes `examples/Split-train`, `examples/Split-eval` and `schema`; measures are scaled to about -2 to 2."""
    generator = np.random.default_rng(seed)
    for split, n in (("train", n_train), ("eval", n_eval)):
        species = generator.integers(3, size=n)
        measures = generator.normal(_MEANS[species], _SCATTER)
        scaled = (measures - _MEANS.mean(0)) / (_SCATTER * 2)
        directory = folder / "examples" / f"Split-{split}"
        directory.mkdir(parents=True, exist_ok=True)
        with RecordWriter(directory / "penguins-00000-of-00001.gz", compression="gzip") as writer:
            for row, label in zip(scaled, species, strict=True):
                writer.write(encode_example({**dict(zip(FEATURES, row, strict=True)), LABEL: label}))
    (folder / "schema").mkdir(exist_ok=True)
    types = dict.fromkeys(FEATURES, "FLOAT") | {LABEL: "INT"}
    lines = [f'feature {{ name: "{name}" type: {kind} shape {{ dim {{ size: 1 }} }} }}' for name, kind in types.items()]
    (folder / "schema" / "schema.pbtxt").write_text("\n".join([*lines, ""]))


def as_arrays(batch):
    """A batch of the data accessor as inputs [n, 4] and labels [n]."""
    features, labels = batch
    return np.concatenate([features[name] for name in FEATURES], axis=1), labels[:, 0].astype(np.int32)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    write_penguins(folder)
    print(f"Penguins are in {folder}: examples and schema.")
