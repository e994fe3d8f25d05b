"""Records what `seqeval` says of random tags, for the test that ours says the same.

Tags of every kind, in any order: also those that mark no proper spans, such as an I- after an O.

    pip install -r benchmarks/requirements.txt seqeval
    python benchmarks/seqeval_goldens.py        # writes tests/golden/seqeval/golden.json
"""

import json
import random
import warnings
from pathlib import Path

from seqeval.metrics import classification_report
from seqeval.metrics.sequence_labeling import get_entities

GOLDEN = Path(__file__).parents[1] / "tests/golden/seqeval/golden.json"
KINDS = {
    "iob": ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"],
    "without-beginnings": ["O", "I-PER", "I-LOC"],
    "all-marks": ["O", "B-PER", "I-PER", "E-PER", "S-PER", "B-LOC", "I-LOC", "E-LOC", "S-LOC"],
    "types-with-hyphens": ["O", "B-geo-loc", "I-geo-loc", "B-geo-org", "I-geo-org"],
    "without-outside": ["B-PER", "I-PER", "B-LOC", "I-LOC"],
    "without-types": ["O", "B", "I", "E", "S"],
}
N_SENTENCES, LONGEST = 40, 9


def case(name: str, tags: list[str]) -> dict[str, object]:
    """Random sentences: the right tags, and the predicted ones, which are half of the time the same."""
    chance = random.Random(name)
    right = [[chance.choice(tags) for _ in range(chance.randint(1, LONGEST))] for _ in range(N_SENTENCES)]
    predicted = [[tag if chance.random() < 0.5 else chance.choice(tags) for tag in sentence] for sentence in right]
    report = classification_report(right, predicted, output_dict=True, zero_division=0)
    names = {"precision": "precision", "recall": "recall", "f1": "f1-score"}
    scores = {ours: float(report["micro avg"][theirs]) for ours, theirs in names.items()}
    for type_, values in report.items():
        if not type_.endswith(" avg"):
            scores |= {f"{type_}/{ours}": float(values[theirs]) for ours, theirs in names.items()}
    return {
        "name": name,
        "right": [" ".join(sentence) for sentence in right],
        "predicted": [" ".join(sentence) for sentence in predicted],
        "spans": [get_entities(sentence) for sentence in predicted],
        "scores": scores,
    }


def main() -> None:
    warnings.simplefilter("ignore")
    GOLDEN.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(case(name, tags)) for name, tags in KINDS.items())
    GOLDEN.write_text(f"[\n{lines}\n]\n")
    print(f"{GOLDEN}: {GOLDEN.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
