"""Vocabularies of RoBERTa and XLM-R: pieces of bytes, special tokens by what they do, and their older files."""

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import tokenizers

from tests.nlp.small_roberta import write_byte_tokenizer, write_merges
from trellis.data import Columns
from trellis.errors import DataError
from trellis.nlp.data import (
    JsonTokenizer,
    Question,
    Specials,
    TextSettings,
    Windows,
    assemble_texts,
    build_tokenizer,
    question_features,
    tokenize_questions,
)
from trellis.nlp.data.masking import build_masking, example_keys, mask_tokens

PASSAGE = "The Cat sat on a mat (1900) . naïve café ?"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_byte_tokenizer(tmp_path_factory.mktemp("bytes"))


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `sentencepiece.bpe.model`."""
    folder = tmp_path_factory.mktemp("pieces")
    (folder / "text.txt").write_text(f"{PASSAGE}\n" * 20)
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text.txt"),
        model_prefix=str(folder / "sentencepiece.bpe"),
        vocab_size=40,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return folder


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.mark.parametrize("seq_length", [12, 13, 30])
def test_pairs_are_put_together_and_cut_as_the_package_does_it(file: str, seq_length: int) -> None:
    ours, theirs = build_tokenizer(file), tokenizers.Tokenizer.from_file(file)
    theirs.enable_truncation(seq_length)
    theirs.enable_padding(length=seq_length, pad_id=1, pad_token="<pad>")
    texts = ["The Cat sat", "a mat", "who sat on the mat ? the dogs", "é", "the dogs jumped on the cat ."]
    pairs = [(a, b) for a in texts for b in ["", *texts]]
    expected = [theirs.encode(a, b) if b else theirs.encode(a) for a, b in pairs]
    made = assemble_texts(
        ours.encode([a for a, _ in pairs]),
        ours.encode([b for _, b in pairs]),
        rows=np.arange(len(pairs)),
        seq_length=seq_length,
        specials=Specials.of(ours),
    )
    assert made.ids.tolist() == [encoding.ids for encoding in expected]
    assert made.mask.tolist() == [encoding.attention_mask for encoding in expected]
    assert not made.types.any()


def test_special_tokens_are_found_by_what_they_do(file: str, pieces: Path) -> None:
    settings = TextSettings.of_weights(pieces)
    assert settings is not None
    for tokenizer, cut in ((build_tokenizer(file), "BPE"), (settings.build_tokenizer(), "SentencePiece")):
        assert (tokenizer.cls, tokenizer.sep, tokenizer.mask, tokenizer.family) == ("<s>", "</s>", "<mask>", cut)
        assert Specials.of(tokenizer) == Specials(cls=0, sep=2, pad=1, n_between=2, has_types=False)
        assert pickle.loads(pickle.dumps(tokenizer)).fingerprint == tokenizer.fingerprint


def test_what_stands_around_spans_is_what_the_file_says(tmp_path: Path, file: str) -> None:
    values = json.loads(Path(file).read_text())
    bos, eos = ({"SpecialToken": {"id": token, "type_id": 0}} for token in ("<unk>", "</s>"))
    a, b = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    special = {
        token: {"id": token, "ids": [number], "tokens": [token]} for token, number in (("<unk>", 3), ("</s>", 2))
    }
    template = {"type": "TemplateProcessing", "single": [bos, a, eos], "pair": [bos, a, eos, b, eos]}
    (tmp_path / "tokenizer.json").write_text(
        json.dumps(values | {"post_processor": template | {"special_tokens": special}})
    )
    tokenizer = build_tokenizer(tmp_path / "tokenizer.json")
    assert (tokenizer.cls, tokenizer.n_between) == ("<unk>", 1)


def test_text_goes_to_bytes_and_back(file: str) -> None:
    tokenizer = build_tokenizer(file)
    for text in ("naïve café 北京 🙂", "The Cat sat .", "  two  spaces"):
        assert tokenizer.text_of(tokenizer.encode([text]).values) == " ".join(text.split())
    assert tokenizer.tokens("The Cat")[0][0] == "T" and tokenizer.tells_spaces
    inside = tokenizer.tokens_of(tokenizer.encode_inside(["Cat"]).values)
    assert inside[0].startswith("Ġ") and tokenizer.starts_word[tokenizer.id_of(inside[0])]


def test_words_have_the_ids_that_they_have_in_their_text(file: str) -> None:
    tokenizer = build_tokenizer(file)
    texts = ["The Cat sat on a mat .", "who sat ?"]
    ids = tokenizer.encode_words([text.split(" ") for text in texts])
    assert ids.values.tolist() == [number for text in texts for number in tokenizer.encode([text]).values]


def test_a_blank_takes_the_space_before_it_along_if_the_file_says_so(tmp_path: Path) -> None:
    for takes_space in (True, False):
        file = write_byte_tokenizer(tmp_path / str(takes_space), mask_takes_space=takes_space)
        tokenizer = build_tokenizer(file)
        theirs = tokenizers.Tokenizer.from_file(file).encode("the <mask> sat", add_special_tokens=False).ids
        assert tokenizer.encode_with_blanks("the [MASK] sat") == theirs
        assert ("Ġ" in tokenizer.tokens_of(theirs)) is not takes_space


def test_a_tokenizer_without_the_kind_of_its_model_is_read(tmp_path: Path, file: str) -> None:
    values = json.loads(Path(file).read_text())
    del values["model"]["type"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    old = build_tokenizer(tmp_path / "tokenizer.json")
    assert old.family == "BPE" and old.tokens("the Cat") == build_tokenizer(file).tokens("the Cat")


def test_windows_over_passages_are_those_of_the_package(file: str) -> None:
    ours, theirs = build_tokenizer(file), tokenizers.Tokenizer.from_file(file)
    text, windows = "who sat ?", Windows(24, 5, 12)
    n_query = len(theirs.encode(text, add_special_tokens=False).ids)
    theirs.enable_truncation(24, stride=24 - n_query - 4 - 5, strategy="only_second")
    encoding = theirs.encode(text, PASSAGE)
    expected = [encoding.ids, *(part.ids for part in encoding.overflowing)]
    question = Question("1", text, tuple(PASSAGE.split(" ")), ("The Cat",), first_word=0, last_word=1)
    block = tokenize_questions([question], tokenizer=ours, windows=windows)
    columns = Columns.from_arrays(block)
    assert [columns["input_ids"][row].tolist() for row in range(len(columns))] == expected  # type: ignore[union-attr]
    features = question_features(columns, rows=np.arange(len(columns)), seq_length=24, specials=Specials.of(ours))
    assert not features["segment_ids"].any()
    is_padding = features["input_mask"] == 0
    assert (features["input_ids"][is_padding] == 1).all()
    first, last = (int(features[f"{end}_positions"][0]) for end in ("start", "end"))
    assert ours.text_of(features["input_ids"][0][first : last + 1]) == "The Cat"


@pytest.mark.parametrize(("answer", "word"), [("mat", 5), ("1900", 6), ("naïve", 8), ("The", 0)])
def test_an_answer_is_found_and_told_inside_of_a_word_and_behind_a_space(answer: str, word: int, file: str) -> None:
    tokenizer = build_tokenizer(file)
    question = Question("1", "who ?", tuple(PASSAGE.split(" ")), (answer,), first_word=word, last_word=word)
    block = tokenize_questions([question], tokenizer=tokenizer, windows=Windows(64, 8, 8))
    first, last = int(block["start_positions"][0]), int(block["end_positions"][0])
    ids = np.asarray(block["input_ids"][0])[first : last + 1]
    assert tokenizer.text_of(ids) == answer
    original = PASSAGE.split(" ")[word]
    place = tokenizer.locate(ids, text=original)
    assert place is not None and original[slice(*place)].strip() == answer


def test_whole_words_are_masked_by_the_spaces_in_their_pieces(file: str) -> None:
    tokenizer = build_tokenizer(file)
    masking = build_masking(tokenizer, rate=0.4, max_predictions=20, whole_word=True)
    ids = np.concatenate([[0], tokenizer.encode(["the dogs jumped on naïve cats zq"]).values, [2, 1, 1]]).astype(
        np.int32
    )
    lengths, keys = np.array([len(ids) - 2]), example_keys(np.arange(1), seed=3, epochs=0)
    masked = mask_tokens(ids[None], lengths=lengths, keys=keys, masking=masking)
    chosen = set(masked.positions[0][masked.weights[0] > 0].tolist())
    starts = [place for place in range(1, len(ids) - 3) if place == 1 or tokenizer.starts_word[ids[place]]]
    words = [set(range(start, stop)) for start, stop in zip(starts, [*starts[1:], len(ids) - 3], strict=True)]
    assert chosen and all(word <= chosen or not word & chosen for word in words)
    assert any(len(word) > 1 for word in words)


def test_the_older_files_of_a_roberta_are_its_tokenizer(tmp_path: Path, file: str) -> None:
    write_merges(tmp_path / "old")
    settings = TextSettings.of_weights(tmp_path / "old")
    assert settings is not None and settings.tokenization == "tokenizer.json"
    ours, expected = settings.build_tokenizer(), JsonTokenizer(file)
    texts = ["The Cat sat <mask> .", "naïve  café\n北京", "</s> x"]
    np.testing.assert_array_equal(ours.encode(texts).values, expected.encode(texts).values)
    assert build_tokenizer(tmp_path / "old" / "vocab.json").fingerprint == ours.fingerprint
    # What was made of them goes with the run, wherever it is moved.
    settings.write(tmp_path / "text")
    shutil.rmtree(tmp_path / "old")
    kept = TextSettings.read(tmp_path / "text")
    assert kept is not None and kept.build_tokenizer().tokens("The Cat") == expected.tokens("The Cat")


def test_a_space_before_the_first_word_is_asked_for_by_the_config(tmp_path: Path) -> None:
    write_merges(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"add_prefix_space": true}')
    tokenizer = build_tokenizer(tmp_path / "vocab.json")
    assert tokenizer.tokens("Cat")[0].startswith("Ġ") and not tokenizer.tells_spaces


def test_the_older_file_of_an_xlm_r_has_its_ids(pieces: Path) -> None:
    model = sentencepiece.SentencePieceProcessor(model_file=str(pieces / "sentencepiece.bpe.model"))
    tokenizer = build_tokenizer(pieces / "sentencepiece.bpe.model")
    n_pieces = model.get_piece_size()
    assert tokenizer.vocab_size == n_pieces + 2 and tokenizer.id_of("<mask>") == n_pieces + 1
    for text in (PASSAGE, "the  Cat", "ｓａｔ ½"):
        assert tokenizer.encode([text]).values.tolist() == [max(number, 2) + 1 for number in model.encode(text)]
    assert tokenizer.text_of(tokenizer.encode(["The Cat sat"]).values) == "The Cat sat"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.json", "[1", "vocab.json` is no vocabulary of byte-level BPE"),
        ("vocab.json", '{"a": 0}', "vocab.json` has no token '<s>', '<pad>', '</s>', '<mask>', as RoBERTa's has"),
        ("merges.txt", "a b c\n", "has the line 'a b c', which is no pair"),
        ("merges.txt", "quite odd\n", "merges.txt` does not go with `.*vocab.json`"),
        ("sentencepiece.bpe.model", "nothing", "sentencepiece.bpe.model` is no SentencePiece model"),
        ("sentencepiece.bpe.model", "", "sentencepiece.bpe.model` begins with the pieces"),
    ],
)
def test_broken_older_files_are_refused_by_name(name: str, content: str, message: str, tmp_path: Path) -> None:
    write_merges(tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message):
        build_tokenizer(tmp_path / (name if name != "merges.txt" else "vocab.json"))


def test_a_vocabulary_without_its_merges_is_no_tokenizer(tmp_path: Path) -> None:
    write_merges(tmp_path)
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(DataError, match="one half of a vocabulary of byte-level BPE. Put its merges.txt beside it."):
        TextSettings.of_weights(tmp_path)
