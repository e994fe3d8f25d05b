"""The published YAML files resolve to the values that they have in Model Garden.

The files in tests/golden/model_garden were written by hand, after descriptions of that library. Where a published file
asks its reader for a path, ours has an empty one.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import trellis.nlp.experiments  # noqa: F401  (registers them)
from trellis.experiments import find_config_file, resolve, shipped_config_files

GOLDEN = Path(__file__).parents[2] / "golden/model_garden"
EXPERIMENTS = {
    "glue_mnli_matched": "bert/sentence_prediction",
    "glue_mnli_text": "bert/sentence_prediction_text",
    "squad_v1": "bert/squad",
    "wiki_books_pretrain": "bert/pretraining",
    "wiki_tfds_pretrain": "bert/text_wiki_pretraining",
}
# Fields that Model Garden does not have.
OUR_OWN = {
    *("n_microbatches", "keep_gradients", "lora", "n_fused_steps", "early_stopping_steps", "train_epochs"),
    *("blow_up_factor", "report_details"),
    *("mesh", "seed", "exact"),
    *(
        "norm_epsilon",
        "outer_norm_epsilon",
        "hub_module_url",
        "use_gradient_checkpointing",
        "return_all_encoder_outputs",
    ),
    *(
        "label_values",
        "column_names",
        "cache_dir",
        "documents",
        "tokenization",
        "lower_case",
        "max_ngram_size",
        "pack_sequences",
    ),
}


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields what is in nested data by dotted paths."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    if not items:
        yield path, value
    for key, item in items:
        yield from leaves(item, f"{path}.{key}" if path else str(key))


@pytest.mark.parametrize("golden", sorted(GOLDEN.glob("*.yaml")), ids=lambda file: file.stem)
def test_a_published_file_resolves_to_the_values_that_it_has_in_model_garden(golden: Path) -> None:
    experiment_file, model_file = golden.stem.split("-")
    files = [f"configs/experiments/{experiment_file}.yaml", f"configs/models/{model_file}.yaml"]
    ours = dict(leaves(resolve(EXPERIMENTS[experiment_file], config_file=files).as_dict()))
    published = dict(leaves(yaml.safe_load(golden.read_text())))
    assert {path: ours.get(path, "missing") for path in published} == published
    more = {path for path in ours.keys() - published.keys() if not OUR_OWN & set(path.split("."))}
    assert not more


def test_every_file_resolves_for_each_experiment_of_its_kind() -> None:
    for file in filter(lambda file: file.suffix == ".yaml", shipped_config_files().values()):
        kinds = {"wiki": ["pretraining"], "squad": ["squad"]}.get(file.stem.split("_")[0], ["sentence_prediction"])
        kinds = ["sentence_prediction_text"] if file.match("glue_*_text.yaml") else kinds
        kinds = ["text_wiki_pretraining"] if "tfds" in file.stem else kinds
        for kind in ["pretraining", "squad"] if file.parent.name == "models" else kinds:
            assert resolve(f"bert/{kind}", config_file=[str(file)], mode="train")


def test_a_file_of_ones_own_comes_before_one_that_is_shipped(tmp_path: Path) -> None:
    (tmp_path / "albert_base.yaml").write_text("trainer:\n  train_steps: 7\n")
    assert resolve("bert/squad", config_file=["albert_base.yaml"]).trainer.train_steps == 7
    assert Path(find_config_file("models/albert_base.yaml")).parts[-3:] == ("yaml", "models", "albert_base.yaml")
    assert find_config_file("nowhere.yaml") == "nowhere.yaml"
