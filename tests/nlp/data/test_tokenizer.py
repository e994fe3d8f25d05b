"""Tokenizers follow the published rules."""

import io
import pickle
import random
from pathlib import Path

import pytest
import sentencepiece
import tokenizers

from tests.nlp.data.small_text import WORDS, small_tokenizer, write_tokenizer_json, write_vocabulary
from trellis.errors import ArgumentError, DataError
from trellis.nlp.data import JsonTokenizer, SentencePieceTokenizer, WordPieceTokenizer, build_tokenizer
from trellis.nlp.data.tokenizer import preprocess_text, split_words

PIECES = ["want", "##want", "##ed", "wa", "un", "runn", "##ing"]


def test_words_become_the_longest_pieces_and_a_rest_makes_the_whole_word_unknown(tmp_path: Path) -> None:
    tokenizer = WordPieceTokenizer(write_vocabulary(tmp_path / "vocab.txt", PIECES))
    assert tokenizer.tokens("") == []
    assert tokenizer.tokens("unwanted running") == ["un", "##want", "##ed", "runn", "##ing"]
    assert tokenizer.tokens("unwantedX running") == ["[UNK]", "runn", "##ing"]


def test_punctuation_stays_in_its_word_when_it_is_not_split(tmp_path: Path) -> None:
    vocabulary = write_vocabulary(tmp_path / "vocab.txt", [*PIECES, "##!", "!"])
    assert WordPieceTokenizer(vocabulary, split_on_punctuation=False).tokens("running!") == ["runn", "##ing", "##!"]
    assert WordPieceTokenizer(vocabulary).tokens("running!") == ["runn", "##ing", "!"]


def test_a_word_of_400_characters_is_looked_up_and_a_longer_one_is_not(tmp_path: Path) -> None:
    tokenizer = WordPieceTokenizer(write_vocabulary(tmp_path / "vocab.txt", ["a", "##a"]))
    assert len(tokenizer.tokens("a" * 400)) == 400
    assert tokenizer.tokens("a" * 401) == ["[UNK]"]


def test_texts_keep_their_rows_whatever_was_seen_before(tmp_path: Path) -> None:
    tokenizer = small_tokenizer(tmp_path)
    texts = ["The cats  sat.", "", "a\tdog\nran", "The cats  sat.", "zzz"]
    first = [tokenizer.tokens_of(row) for row in map(tokenizer.encode(texts).__getitem__, range(5))]
    assert first == [
        ["the", "cat", "##s", "sat", "."],
        [],
        ["a", "dog", "ran"],
        ["the", "cat", "##s", "sat", "."],
        ["[UNK]"],
    ]
    assert tokenizer.encode([]).values.tolist() == []
    assert tokenizer.encode(texts[::-1]).offsets.tolist() == [0, 1, 6, 9, 9, 14]


def test_a_tokenizer_forgets_words_when_it_knows_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = small_tokenizer(tmp_path)
    expected = tokenizer.encode(["the cats sat", "on the mats"]).values.tolist()
    monkeypatch.setattr("trellis.nlp.data.tokenizer._MOST_CHUNKS", 2)
    assert tokenizer.encode(["the cats sat", "on the mats"]).values.tolist() == expected


def test_ids_are_line_numbers_and_spell_the_text_again(tmp_path: Path) -> None:
    tokenizer = small_tokenizer(tmp_path)
    assert tokenizer.id_of("[CLS]") == 2
    assert tokenizer.text_of(tokenizer.encode(["The cats jumped."]).values) == "the cats jumped ."
    assert not tokenizer.starts_word[tokenizer.id_of("##s")]
    with pytest.raises(DataError, match="has no token 'horse'"):
        tokenizer.id_of("horse")


def test_a_tokenizer_can_be_sent_to_another_process(tmp_path: Path) -> None:
    tokenizer = small_tokenizer(tmp_path)
    assert pickle.loads(pickle.dumps(tokenizer)).tokens("cats") == ["cat", "##s"]


def test_the_fingerprint_changes_with_the_vocabulary_and_the_settings(tmp_path: Path) -> None:
    vocabulary = write_vocabulary(tmp_path / "vocab.txt")
    prints = {
        WordPieceTokenizer(vocabulary).fingerprint,
        WordPieceTokenizer(vocabulary, lower_case=False).fingerprint,
        WordPieceTokenizer(write_vocabulary(tmp_path / "other.txt", ["cat"])).fingerprint,
    }
    assert len(prints) == 3
    assert WordPieceTokenizer(vocabulary).fingerprint in prints


def test_what_is_no_vocabulary_is_told_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no_such.txt` cannot be read"):
        build_tokenizer(tmp_path / "no_such.txt")
    (tmp_path / "empty.txt").touch()
    with pytest.raises(DataError, match="empty.txt` is empty"):
        build_tokenizer(tmp_path / "empty.txt")
    (tmp_path / "latin.txt").write_bytes("[UNK]\nh\xe9llo\n".encode("latin-1"))
    with pytest.raises(DataError, match="latin.txt: not UTF-8"):
        build_tokenizer(tmp_path / "latin.txt")
    (tmp_path / "words.txt").write_text("cat\n")
    with pytest.raises(DataError, match=r"has no token '\[UNK\]'"):
        build_tokenizer(tmp_path / "words.txt")
    with pytest.raises(DataError, match="is no SentencePiece model"):
        build_tokenizer(tmp_path / "words.txt", tokenization="SentencePiece")
    with pytest.raises(ArgumentError, match="tokenization is 'BPE'"):
        build_tokenizer(tmp_path / "words.txt", tokenization="BPE")


@pytest.fixture(scope="module")
def sentencepiece_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    model = io.BytesIO()
    text = ["the cat sat on 1000, mats", "a dog ran 1000, miles", "who has 20, cats", "the dog sat", "cats on mats"] * 9
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text),
        model_writer=model,
        vocab_size=60,
        hard_vocab_limit=False,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols="[CLS],[SEP],[MASK]",
        user_defined_symbols="0,",
        minloglevel=2,
    )
    path = tmp_path_factory.mktemp("pieces") / "small.model"
    path.write_bytes(model.getvalue())
    return str(path)


def test_sentencepiece_gives_the_pieces_of_its_model(sentencepiece_model: str) -> None:
    tokenizer = SentencePieceTokenizer(sentencepiece_model)
    ids = tokenizer.encode(["The  CAT sat", "on mats"])
    assert tokenizer.text_of(ids[0]) == "the cat sat"
    assert tokenizer.text_of(ids[1]) == "on mats"
    assert tokenizer.tokens("the cat")[0].startswith("\u2581")
    assert tokenizer.starts_word[ids[0][0]]
    assert tokenizer.id_of("[MASK]") == 4
    with pytest.raises(DataError, match="has no piece 'horse'"):
        tokenizer.id_of("horse")


def test_a_comma_behind_a_digit_is_a_piece_of_its_own(sentencepiece_model: str) -> None:
    tokenizer = SentencePieceTokenizer(sentencepiece_model)
    tokens = tokenizer.tokens("20, cats")
    assert "0," not in tokens
    assert "," in tokens
    assert "".join(tokens).replace("\u2581", " ").strip() == "20, cats"
    ids = tokenizer.encode(["the cat", "20, cats"])
    assert tokenizer.tokens_of(ids[0]) == tokenizer.tokens("the cat")
    assert len(ids[1]) == len(tokens)


def test_text_for_sentencepiece_is_made_plain() -> None:
    assert preprocess_text("  Caf\u00e9 \n \ufb01ne ") == "Cafe fine"
    assert preprocess_text("  ABC ", lower=True) == "abc"


def test_spaces_punctuation_and_case_are_taken_apart() -> None:
    text = " \tHeLLo!how  \n Are yoU?  "
    assert split_words(text) == ["hello", "!", "how", "are", "you", "?"]
    assert split_words(text, lower_case=False) == ["HeLLo", "!", "how", "Are", "yoU", "?"]
    assert split_words(text, split_on_punctuation=False) == ["hello!how", "are", "you?"]


def test_accents_go_with_the_case_only() -> None:
    assert split_words("Héllo") == ["hello"]
    assert split_words("Héllo", lower_case=False) == ["Héllo"]
    assert split_words("a \u0301 b") == ["a", "b"]


def test_ideographs_are_words_of_their_own() -> None:
    assert split_words("ah\u535a\u63a8zz") == ["ah", "\u535a", "\u63a8", "zz"]


@pytest.mark.parametrize("space", [" ", "\t", "\r", "\n", "\u00a0", "\u2003", "\u2028"])
def test_these_are_spaces(space: str) -> None:
    assert split_words(f"a{space}b") == ["a", "b"]


@pytest.mark.parametrize("control", ["\x00", "\x05", "\x0b", "\x7f", "\u200b", "\u00ad", "\ufffd"])
def test_these_are_dropped(control: str) -> None:
    assert split_words(f"a{control}b") == ["ab"]


@pytest.mark.parametrize("mark", ["-", "$", "`", ".", "~", "^", "\u2013", "\u3002", "\u00bf"])
def test_these_are_punctuation(mark: str) -> None:
    assert split_words(f"a{mark}b") == ["a", mark, "b"]


@pytest.mark.parametrize("letter", ["A", "\u00df", "\U0001f4a9", "\ue000", "\u20ac"])
def test_these_are_part_of_a_word(letter: str) -> None:
    assert split_words(f"a{letter}b", lower_case=False) == [f"a{letter}b"]


def test_every_ascii_text_is_split_as_the_general_rules_split_it() -> None:
    for code in range(128):
        text = f"a{chr(code)}B"
        # A character beyond ASCII beside it brings the general rules about.
        assert split_words(text) == split_words(f"{text} \u0436")[:-1], code
        assert split_words(text, lower_case=False) == split_words(f"{text} \u0436", lower_case=False)[:-1], code
        assert (
            split_words(text, split_on_punctuation=False)
            == split_words(f"{text} \u0436", split_on_punctuation=False)[:-1]
        ), code


def test_a_process_that_gets_a_tokenizer_with_each_block_opens_its_vocabulary_once(tmp_path: Path) -> None:
    tokenizer = WordPieceTokenizer(write_vocabulary(tmp_path / "vocab.txt", PIECES))
    sent = pickle.dumps(tokenizer)
    assert len(sent) < 1000
    assert pickle.loads(sent) is pickle.loads(sent)
    assert pickle.loads(sent).fingerprint == tokenizer.fingerprint


def test_a_vocabulary_that_is_replaced_while_it_is_in_use_is_refused(tmp_path: Path) -> None:
    sent = pickle.dumps(WordPieceTokenizer(write_vocabulary(tmp_path / "vocab.txt", PIECES)))
    write_vocabulary(tmp_path / "vocab.txt", PIECES[:-1])
    with pytest.raises(DataError, match="vocab.txt` was changed while it was in use"):
        pickle.loads(sent)


NASTY = [
    *("\ue000", "\U000f0000", "\u0378", "\U000e0001", "\ufffd", "\0", "\u200b", "\u00ad", "\u202f", "\u3000", "\ufeff"),
    *(
        "é",
        "e\u0301",
        "İ",
        "ß",
        "ﬁ",
        "Ǆ",
        "中",
        "𠀀",
        "か",
        "한",
        "💩",
        "👩\u200d👩",
        "\u061c",
        "१",
        "½",
        "\u2028",
        "\x85",
    ),
    *(
        "[MASK]",
        "[mask]",
        "[CLS]",
        "[SEP]",
        "[UNK]",
        "[PAD]",
        "##s",
        "a" * 101,
        "a" * 401,
        "cat" * 40,
        "'",
        "…",
        "\t",
        "\r\n",
    ),
]


@pytest.mark.parametrize("lowercase", [True, False])
def test_a_tokenizer_json_gives_exactly_the_ids_that_its_package_makes_of_nasty_text(
    tmp_path: Path, lowercase: bool
) -> None:
    words = [*WORDS, "The", "é", "e", "中", "##中", "i", "##i", "##a", "s", "fi", "[", "]", "mask"]
    file = write_tokenizer_json(tmp_path / "tokenizer.json", words, lowercase=lowercase)
    reference = tokenizers.Tokenizer.from_file(file)
    reference.no_truncation()
    reference.no_padding()
    ours = build_tokenizer(file)
    chance = random.Random(0)
    letters = [*NASTY, *WORDS, "The", " ", " ", "  "]
    texts = ["", " ", *NASTY, *("".join(chance.choices(letters, k=chance.randrange(1, 12))) for _ in range(3000))]
    expected = [reference.encode(text, add_special_tokens=False).ids for text in texts]
    rows = ours.encode(texts)
    assert [list(rows[number]) for number in range(len(texts))] == expected
    assert (ours.lower_case, ours.strip_accents, ours.tokenize_chinese_chars) == (lowercase, lowercase, True)
    assert (ours.family, ours.vocab_size) == ("WordPiece", reference.get_vocab_size())
    assert pickle.loads(pickle.dumps(ours)).fingerprint == ours.fingerprint


def test_a_literal_mask_is_the_token_for_weights_and_three_words_for_the_published_rules(tmp_path: Path) -> None:
    words = [*WORDS, "[", "]", "mask"]
    theirs = build_tokenizer(write_tokenizer_json(tmp_path / "tokenizer.json", words))
    assert theirs.tokens("the [MASK] sat") == ["the", "[MASK]", "sat"]
    ours = build_tokenizer(write_vocabulary(tmp_path / "vocab.txt", words))
    assert ours.tokens("the [MASK] sat") == ["the", "[", "mask", "]", "sat"]


def test_the_rules_of_a_tokenizer_json_can_be_changed_as_its_config_asks(tmp_path: Path) -> None:
    file = write_tokenizer_json(tmp_path / "tokenizer.json", ["The", "the", "é", "e", "É"])
    assert JsonTokenizer(file).tokens("The É") == ["the", "e"]
    assert JsonTokenizer(file, lower_case=False).tokens("The É") == ["The", "É"]
    assert JsonTokenizer(file, strip_accents=False).tokens("The É") == ["the", "é"]
    assert JsonTokenizer(file, lower_case=True).fingerprint == JsonTokenizer(file).fingerprint
    assert JsonTokenizer(file, lower_case=False).fingerprint != JsonTokenizer(file).fingerprint


def test_a_tokenizer_json_tells_where_pieces_stand_in_a_text(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(write_tokenizer_json(tmp_path / "tokenizer.json"))
    text = "(The\u200b CÁTS) sat."
    ids = tokenizer.encode(["cats"]).values
    place = tokenizer.locate(ids, text=text)
    assert place is not None and text[slice(*place)] == "CÁTS"
    assert tokenizer.locate(tokenizer.encode(["dog"]).values, text=text) is None
    assert tokenizer.text_of(ids) == "cats" and tokenizer.words("The CÁTS.") == ["the", "cats", "."]
    assert tokenizer.starts_word[ids].tolist() == [True, False]


def test_a_file_that_is_no_tokenizer_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(DataError, match="tokenizer.json is no tokenizer.json .*Copy the file again."):
        build_tokenizer(tmp_path / "tokenizer.json")


def test_accents_and_ideographs_are_kept_when_weights_say_so(tmp_path: Path) -> None:
    file = write_vocabulary(tmp_path / "vocab.txt", ["é", "e", "É", "中", "##文", "文"])
    assert WordPieceTokenizer(file).tokens("É 中文") == ["e", "中", "文"]
    assert WordPieceTokenizer(file, strip_accents=False).tokens("É") == ["é"]
    assert WordPieceTokenizer(file, lower_case=False, strip_accents=True).tokens("é") == ["e"]
    assert WordPieceTokenizer(file, tokenize_chinese_chars=False).tokens("中文") == ["中", "##文"]
    assert preprocess_text("Déjà", strip_accents=False) == "Déjà"
