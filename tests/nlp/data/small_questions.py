"""A small file in SQuAD's format, for the tests of questions."""

import json
from pathlib import Path
from typing import Any

from tests.nlp.data.small_text import write_vocabulary

PASSAGE = "Sky is blue."
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sky", "is", "blue"]


def sky_vocabulary(folder: Path) -> str:
    """The eight words of the published example."""
    path = folder / "sky.txt"
    path.write_text("\n".join(WORDS) + "\n")
    return str(path)


def long_vocabulary(folder: Path) -> str:
    """Twenty words and a question of one."""
    return write_vocabulary(folder / "long.txt", [f"w{number}" for number in range(20)] + ["why"])


def question(name: str, text: str, *answers: str, passage: str = PASSAGE, **fields: Any) -> dict[str, Any]:
    found = [{"text": answer, "answer_start": passage.find(answer)} for answer in answers]
    return {"id": name, "question": text, "answers": found, **fields}


def write_squad(path: Path, *questions: dict[str, Any], passage: str = PASSAGE) -> str:
    paragraph = {"context": passage, "qas": list(questions)}
    path.write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": [paragraph]}]}))
    return str(path)
