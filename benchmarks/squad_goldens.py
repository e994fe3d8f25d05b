"""Records the scores that the official algorithm of SQuAD 2.0 gives to many predictions, for the tests of ours.

The algorithm is that of the official script as transformers had it up to version 4, which can be installed. Questions
and predictions are made up: articles, punctuation, case, other scripts, several answers, none, ties, missing words.

    pip install 'transformers<5'
    python benchmarks/squad_goldens.py                                    # writes tests/golden/squad_v2
    python benchmarks/squad_goldens.py --questions=dev-v2.0.json --output_dir=real --n_cases=25    # real questions
"""

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformers.data.metrics.squad_metrics import squad_evaluate

GOLDENS = Path(__file__).parents[1] / "tests" / "golden" / "squad_v2"
N_QUESTIONS, N_CASES = 80, 10
WORDS = [
    "The",
    "a",
    "An",
    "the",
    "sky",
    "Blue",
    "blue",
    "cat's",
    "hat!",
    "U.S.",
    "1,000",
    "été",
    "Ａ",
    "東京",
    "—",
    "co-op",
    "…",
    "$5",
]
THRESHOLDS = [-3.0, -0.5, 0.0, 0.5, 1.0]


class Asked(NamedTuple):
    """A question as the official algorithm reads it."""

    qas_id: str
    answers: list[dict[str, str]]


def make_questions(chance: random.Random) -> dict[str, list[str]]:
    """The answers to each question; none to a third of them, and to some nothing but articles."""
    answers = {
        f"q{number}": [" ".join(chance.choices(WORDS, k=chance.randint(1, 5))) for _ in range(chance.choice([0, 1, 3]))]
        for number in range(N_QUESTIONS)
    }
    return answers | {"articles": ["the"], "articles and more": ["An", "the cat"], "punctuation": ["…!", "?"]}


def read_questions(file: Path) -> dict[str, list[str]]:
    articles = json.loads(file.read_text(encoding="utf-8"))["data"]
    asked = [question for article in articles for part in article["paragraphs"] for question in part["qas"]]
    return {question["id"]: [answer["text"] for answer in question["answers"]] for question in asked}


def predict(answers: Sequence[str], others: Sequence[str], chance: random.Random) -> str:
    """Something that is right, nearly right, wrong, or nothing."""
    text = chance.choice(answers or others)
    words = text.split() or [""]
    return chance.choice(
        [
            text,
            text.upper(),
            f"the {text}.",
            "",
            " ".join(words[1:]),
            " ".join([*words, chance.choice(words)]),
            " ".join(chance.sample(words, len(words))),
            chance.choice(others),
            chance.choice(["a", "The", "!", " "]),
        ]
    )


def make_case(questions: Mapping[str, Sequence[str]], number: int, chance: random.Random) -> dict[str, Any]:
    """Predictions and odds; odds are missing, coarse enough to tie, or fine, and know something of the truth."""
    others = [text for answers in questions.values() for text in answers]
    predictions = {name: predict(answers, others, chance) for name, answers in questions.items()}
    case: dict[str, Any] = {"predictions": predictions}
    if number % 5:
        digits = number % 3
        case["null_odds"] = {
            name: round(chance.gauss(-1 if answers else 1, 2), digits) for name, answers in questions.items()
        }
        case["threshold"] = chance.choice(THRESHOLDS)
    return case


def score(questions: Mapping[str, Sequence[str]], case: Mapping[str, Any]) -> dict[str, float]:
    asked = [Asked(name, [{"text": text} for text in answers]) for name, answers in questions.items()]
    odds = case.get("null_odds")
    scores = squad_evaluate(asked, case["predictions"], odds, case.get("threshold", 1.0))
    return {name: value for name, value in scores.items() if odds is not None or not name.startswith("best_")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=Path, help="A file of SQuAD 2.0, instead of made-up questions.")
    parser.add_argument("--output_dir", type=Path, default=GOLDENS)
    parser.add_argument("--n_cases", type=int, default=N_CASES)
    arguments = parser.parse_args()
    chance = random.Random(0)
    questions = read_questions(arguments.questions) if arguments.questions else make_questions(chance)
    cases = [make_case(questions, number, chance) for number in range(arguments.n_cases)]
    recorded = {"questions": questions, "cases": [{**case, "scores": score(questions, case)} for case in cases]}
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    text = json.dumps(recorded, ensure_ascii=False, indent=1)
    (arguments.output_dir / "golden.json").write_text(text + "\n", encoding="utf-8")
    print(f"{len(questions)} questions, {len(cases)} cases in {arguments.output_dir}")


if __name__ == "__main__":
    main()
