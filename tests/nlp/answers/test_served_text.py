"""A server answers text as the served model does: for each kind of model, many callers at once."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.nlp.data.small_text import small_tokenizer
from tests.serving.served_models import application, client_of
from trellis.nlp.answers import (
    Answerer,
    AnswerOptions,
    BlankAnswerer,
    LabelsAnswerer,
    QuestionAnswerer,
    SentenceAnswerer,
    TagAnswerer,
    load_predictor,
    open_served_text,
    served_metadata,
)
from trellis.nlp.data import TextSettings, Windows
from trellis.serving import Signature, export_model

LENGTH, N_TOKENS = 16, 19
PASSAGE = "the cat sat on a mat . the dog jumped on the cats . who ran ? a cat ran ."
EMBEDDINGS = np.random.default_rng(0).normal(size=(N_TOKENS, N_TOKENS)).astype(np.float32)


def tokens(v: Any, inputs: Mapping[str, Any]) -> jax.Array:
    """A vector for each token that knows of the whole row, and of no other."""
    vectors = v["embeddings"][inputs["input_word_ids"]] * inputs["input_mask"][..., None]
    return vectors + vectors.mean(1, keepdims=True) + inputs["input_type_ids"][..., None]


def blanks(v: Any, inputs: Mapping[str, Any]) -> Any:
    positions = inputs["masked_lm_positions"][..., None]
    return {"mlm_logits": jnp.take_along_axis(tokens(v, inputs), positions, axis=1)}


def sentences(v: Any, inputs: Mapping[str, Any]) -> Any:
    return tokens(v, inputs).mean(1)[:, :2]


def tags(v: Any, inputs: Mapping[str, Any]) -> Any:
    return tokens(v, inputs)[..., :2]


def questions(v: Any, inputs: Mapping[str, Any]) -> Any:
    return {"start_logits": tokens(v, inputs)[..., 0], "end_logits": tokens(v, inputs)[..., 1]}


KINDS: list[tuple[str, Answerer, Any, list[tuple[str, ...]]]] = [
    ("fill", BlankAnswerer(LENGTH, 2), blanks, [("the [MASK] sat .",), ("[MASK] [MASK] [MASK] ran",), ("a [MASK]",)]),
    (
        "classify",
        SentenceAnswerer(LENGTH, ("no", "yes"), ("first", "second")),
        sentences,
        [("the cat sat .", "a cat sat ."), ("the dog ran", "who ?"), ("a mat", "the mat .")],
    ),
    ("label", LabelsAnswerer(LENGTH, ("no", "yes")), sentences, [("the cat sat .",), ("a dog",), ("who ?",)]),
    # The second is longer than a row.
    ("tag", TagAnswerer(LENGTH, ("B-PET", "O")), tags, [("the cat sat .",), ("the dogs ran " * 9,), ("who ?",)]),
    (
        "answer",
        QuestionAnswerer(Windows(LENGTH, 4, 4), AnswerOptions()),
        questions,
        [("who sat ?", PASSAGE), ("who ran ?", "a dog ran ."), ("who jumped ?", PASSAGE)],
    ),
]


def numbers_in(values: Any) -> list[float]:
    if isinstance(values, dict | list | tuple):
        inner = values.values() if isinstance(values, dict) else values
        return [number for value in inner for number in numbers_in(value)]
    return [float(values)] if isinstance(values, int | float) else []


@pytest.mark.parametrize(("word", "answerer", "function", "texts"), KINDS, ids=[kind[0] for kind in KINDS])
def test_a_server_answers_text_of_many_callers_as_the_served_model_does(
    tmp_path: Path, word: str, answerer: Any, function: Any, texts: list[tuple[str, ...]]
) -> None:
    tokenizer = small_tokenizer(tmp_path)
    metadata = served_metadata(answerer, text=TextSettings.of(tokenizer), vocab_size=N_TOKENS, n_types=2)
    inputs = {name: np.zeros((2, length), np.int32) for name, length in answerer.input_lengths.items()}
    served = export_model(
        tmp_path / "served",
        variables={"embeddings": EMBEDDINGS},
        signatures={"inference_step": Signature(function, inputs)},
        files={"vocab.txt": tmp_path / "vocab.txt"},
        metadata={"text": metadata},
        platforms=["cpu"],
    )
    client = client_of(application(served, open_text=open_served_text))
    expected = [prediction.values for prediction in load_predictor(str(served))(texts)]

    def ask(number: int) -> Any:
        return client.post(f"/{word}", json={"text": list(texts[number % 3])}).json()

    together = client.post(f"/{word}", json={"texts": list(map(list, texts))}).json()["answers"]
    with ThreadPoolExecutor(8) as threads:
        answers = [*together, *threads.map(ask, range(24))]
    for number, answer in enumerate(answers):
        theirs = expected[number % 3]
        assert answer.keys() - {"model_name", "model_version"} == theirs.keys()
        own = {key: answer[key] for key in theirs}
        assert numbers_in(own) == pytest.approx(numbers_in(theirs), abs=1e-4)
    for wrong in ({"text": [" "]}, {"text": ["a"] * 3}, {"texts": "a"}):
        refused = client.post(f"/{word}", json=wrong)
        assert refused.status_code == 400
        assert str(tmp_path) not in refused.text
    assert client.post("/embed", json={"text": "the cat ."}).json()["error"].startswith("The model does not embed.")
