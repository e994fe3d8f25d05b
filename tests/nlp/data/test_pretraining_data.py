"""Records to pretrain on: pairs, masks, and the same bytes whatever made them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.nlp.data.small_text import is_mapped, small_tokenizer, write_corpus_file
from trellis.data import decode_example, read_records
from trellis.errors import ArgumentError, DataError
from trellis.nlp.data import (
    PretrainingOptions,
    WordPieceTokenizer,
    corpus as corpus_module,
    local_map,
    token_cache,
    write_pretraining_data,
)
from trellis.nlp.data.corpus import Corpus
from trellis.nlp.data.next_sentences import Pairing, plan_pairs, write_plan

OPTIONS = PretrainingOptions(max_seq_length=24, max_predictions_per_seq=4, dupe_factor=3)


def write(tmp_path: Path, name: str, options: PretrainingOptions = OPTIONS, **settings: Any) -> list[Path]:
    text = write_corpus_file(tmp_path / "text.txt")
    outputs = [tmp_path / f"{name}-{number}.tfrecord" for number in range(2)]
    write_pretraining_data(
        text, output_files=list(map(str, outputs)), tokenizer=small_tokenizer(tmp_path), options=options, **settings
    )
    return outputs


def test_records_have_the_published_features(tmp_path: Path) -> None:
    records = [decode_example(record) for path in write(tmp_path, "a") for record in read_records(path)]
    assert len(records) > 30
    tokenizer = small_tokenizer(tmp_path)
    for record in records:
        ids, mask, types = (np.asarray(record[name]) for name in ("input_ids", "input_mask", "segment_ids"))
        length = int(mask.sum())
        assert len(ids) == len(mask) == len(types) == 24
        assert ids[0] == tokenizer.id_of("[CLS]")
        assert ids[length - 1] == tokenizer.id_of("[SEP]")
        assert (ids[length:] == 0).all()
        assert types[:length].tolist() == sorted(types[:length].tolist())
        assert types[length - 1] == 1
        n_masked = int(np.sum(record["masked_lm_weights"]))
        assert n_masked == min(4, max(1, round(length * 0.15)))
        assert len(record["masked_lm_positions"]) == len(record["masked_lm_ids"]) == 4
        assert len(record["next_sentence_labels"]) == 1
    assert {int(record["next_sentence_labels"][0]) for record in records} == {0, 1}


def test_the_same_bytes_are_written_by_one_process_and_by_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trellis.nlp.data.pretraining_data._BLOCK_PAIRS", 8)
    monkeypatch.setattr("trellis.nlp.data.next_sentences._BLOCK_DOCUMENTS", 5)
    alone, together = write(tmp_path, "one", ordered_map=map), write(tmp_path, "two", ordered_map=local_map(2))
    assert [path.read_bytes() for path in alone] == [path.read_bytes() for path in together]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "one-0.tfrecord", "one-0.tfrecord.text", "one-1.tfrecord", "text.txt",
        "two-0.tfrecord", "two-0.tfrecord.text", "two-1.tfrecord", "vocab.txt",
    ]  # fmt: skip


def test_another_seed_gives_other_records_and_each_pass_other_masks(tmp_path: Path) -> None:
    first = write(tmp_path, "a")[0].read_bytes()
    second = write(tmp_path, "b", PretrainingOptions(24, 4, random_seed=1, dupe_factor=3))[0].read_bytes()
    assert first != second
    records = [record for path in write(tmp_path, "c") for record in read_records(path)]
    assert len(set(records)) > 0.8 * len(records)


def test_second_names_and_compression_are_written_when_asked_for(tmp_path: Path) -> None:
    options = PretrainingOptions(24, 4, dupe_factor=1, use_v2_feature_names=True, gzip_compress=True)
    path = write(tmp_path, "v2", options)[0]
    assert path.read_bytes()[:2] == b"\x1f\x8b"
    assert {"input_word_ids", "input_type_ids"} <= set(decode_example(next(read_records(path))))


def test_spans_that_follow_each_other_do_so_in_the_text_and_others_come_from_another_document(tmp_path: Path) -> None:
    text = write_corpus_file(tmp_path / "text.txt")
    corpus = Corpus.read(text, tokenizer=small_tokenizer(tmp_path))
    pairing = Pairing(seq_length=40, seed=0, short_seq_prob=0.0)
    planned = plan_pairs(corpus, documents=range(corpus.n_documents), pairing=pairing)
    token_documents = np.repeat(np.arange(corpus.n_documents), np.diff(corpus.document_offsets))
    document_of = np.repeat(token_documents, corpus.sentences.lengths)
    pairs = planned.pairs
    assert (pairs.lengths <= 40).all()
    assert ((pairs.a_lengths > 0) & (pairs.b_lengths > 0)).all()
    is_next = ~planned.is_random
    same = document_of[pairs.a_starts] == document_of[pairs.b_starts]
    assert same[is_next].all()
    assert not same[planned.is_random].any()
    uncut = is_next & (pairs.a_lengths + pairs.b_lengths < 37)
    assert (pairs.b_starts[uncut] == (pairs.a_starts + pairs.a_lengths)[uncut]).all()
    assert 0.2 < planned.is_random.mean() < 0.9


def test_without_next_sentences_every_token_is_used_once(tmp_path: Path) -> None:
    text = write_corpus_file(tmp_path / "text.txt")
    corpus = Corpus.read(text, tokenizer=small_tokenizer(tmp_path))
    for length in (5, 12, 40):
        pairing = Pairing(seq_length=length, seed=0, with_next_sentence=False)
        spans = plan_pairs(corpus, documents=range(corpus.n_documents), pairing=pairing).pairs
        covered = np.concatenate([np.arange(s, s + n) for s, n in zip(spans.a_starts, spans.a_lengths, strict=True)])
        assert covered.tolist() == list(range(len(corpus.sentences.values)))
        assert spans.lengths.max() <= length


def test_text_is_tokenized_once_and_again_when_it_or_the_vocabulary_changes(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    write_corpus_file(path)
    tokenizer = small_tokenizer(tmp_path)
    first = Corpus.read(str(path), tokenizer=tokenizer).directory
    written = (first / "columns.json").stat().st_mtime_ns
    os.utime(path, ns=(0, 0))
    assert Corpus.read(str(path), tokenizer=tokenizer).directory == first
    copy = shutil.copy(path, tmp_path / "copy.txt")
    assert Corpus.read(copy, tokenizer=tokenizer, cache_dir=first.parent).directory == first
    assert (first / "columns.json").stat().st_mtime_ns == written
    other = WordPieceTokenizer(tmp_path / "vocab.txt", lower_case=False)
    assert Corpus.read(str(path), tokenizer=other).directory != first
    path.write_text("the cat .\n")
    assert Corpus.read(str(path), tokenizer=tokenizer).sentences.lengths.tolist() == [3]
    elsewhere = tmp_path / "elsewhere"
    assert Corpus.read(str(path), tokenizer=tokenizer, cache_dir=elsewhere).directory.parent == elsewhere


def test_text_that_looks_as_it_did_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "text.txt"
    write_corpus_file(path)
    tokenizer = small_tokenizer(tmp_path)
    first = Corpus.read(str(path), tokenizer=tokenizer).directory
    monkeypatch.delattr("hashlib.file_digest")
    assert Corpus.read(str(path), tokenizer=tokenizer).directory == first


def test_text_is_tokenized_by_several_processes_to_the_same_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = write_corpus_file(tmp_path / "text.txt")
    alone = Corpus.read(text, tokenizer=small_tokenizer(tmp_path), cache_dir=tmp_path / "alone")
    monkeypatch.setattr(token_cache, "_BYTES_WORTH_A_PROCESS", 1)
    monkeypatch.setattr(token_cache.os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(corpus_module, "_BLOCK_SENTENCES", 7)
    monkeypatch.setattr(corpus_module, "_BLOCK_NUMBERS", 5)
    pools: list[int] = []
    pool = token_cache.ProcessPoolExecutor
    monkeypatch.setattr(token_cache, "ProcessPoolExecutor", lambda n, **options: pools.append(n) or pool(n, **options))
    together = Corpus.read(text, tokenizer=small_tokenizer(tmp_path), cache_dir=tmp_path / "together")
    assert pools == [2]
    np.testing.assert_array_equal(together.sentences.values, alone.sentences.values)
    np.testing.assert_array_equal(together.sentences.offsets, alone.sentences.offsets)
    np.testing.assert_array_equal(together.document_offsets, alone.document_offsets)


def test_a_script_that_is_not_guarded_against_its_import_can_start_processes(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from trellis.nlp.data.token_cache import local_map\nprint(list(local_map(2)(len, [[1], [1, 2], []])))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[1, 2, 0]\n", "")


def test_a_corpus_keeps_no_list_of_its_documents_in_memory(tmp_path: Path) -> None:
    corpus = Corpus.read(write_corpus_file(tmp_path / "text.txt"), tokenizer=small_tokenizer(tmp_path))
    assert all(map(is_mapped, (corpus.document_offsets, corpus.sentences.offsets, corpus.sentences.values)))


WIKI = """
 = Cats =

 the cat sat .

 the cat ran on the mat .

 = = Dogs = =

 a dog ran .

 = Mats =

 the mat sat on the cat .

 a mat ran .
"""


def test_pairs_that_are_nearly_all_random_are_told_and_documents_may_begin_with_headings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wiki.txt").write_text(WIKI)
    pairing = Pairing(seq_length=24, seed=0)
    paragraphs = Corpus.read(str(tmp_path / "wiki.txt"), tokenizer=small_tokenizer(tmp_path))
    assert paragraphs.n_documents == 8
    assert write_plan(tmp_path / "paragraphs", corpus=paragraphs, pairing=pairing).is_random.all()
    said = "100% of the pairs do not follow each other, for want of a next sentence: a document has 1.0 sentences. "
    assert said in capsys.readouterr().out.replace("\n", " ")
    articles = Corpus.read(str(tmp_path / "wiki.txt"), tokenizer=small_tokenizer(tmp_path), documents="headings")
    assert np.diff(articles.document_offsets).tolist() == [5, 3]
    assert not write_plan(tmp_path / "articles", corpus=articles, pairing=pairing).is_random.all()
    assert capsys.readouterr().out == ""


def test_documents_of_rows_are_read_by_their_columns(tmp_path: Path) -> None:
    path = tmp_path / "text.jsonl"
    path.write_text('{"title": "the cat", "text": "a dog ran .\\nthe cat sat"}\n{"title": "on", "text": "the mat"}\n')
    corpus = Corpus.read(str(path), tokenizer=small_tokenizer(tmp_path), text_fields=["title", "text"])
    assert np.diff(corpus.document_offsets).tolist() == [3, 2]
    with pytest.raises(DataError, match=r"text.jsonl:1: there is no text in 'body'; the columns are title, text"):
        Corpus.read(str(path), tokenizer=small_tokenizer(tmp_path), text_fields=["body"])


def test_text_that_is_none_is_refused_with_its_name(tmp_path: Path) -> None:
    tokenizer = small_tokenizer(tmp_path)
    (tmp_path / "blank.txt").write_text("\n\n \n")
    with pytest.raises(DataError, match="every line is empty"):
        Corpus.read(str(tmp_path / "blank.txt"), tokenizer=tokenizer)
    (tmp_path / "latin.txt").write_bytes(b"the cat\ncaf\xe9\n")
    with pytest.raises(DataError, match=r"latin.txt:2: not UTF-8"):
        Corpus.read(str(tmp_path / "latin.txt"), tokenizer=tokenizer)
    (tmp_path / "empty.txt").touch()
    with pytest.raises(DataError, match="empty.txt is empty"):
        Corpus.read(str(tmp_path / "empty.txt"), tokenizer=tokenizer)


def test_options_that_cannot_work_are_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="max_ngram_size is 3, which needs whole words"):
        write(tmp_path, "a", PretrainingOptions(max_ngram_size=3))
    with pytest.raises(ArgumentError, match="dupe_factor is 0"):
        write(tmp_path, "a", PretrainingOptions(dupe_factor=0))
    with pytest.raises(ArgumentError, match="2 places for the output as columns. Give one directory"):
        write(tmp_path, "a", output_format="columns")
    with pytest.raises(ArgumentError, match="seq_length is 4"):
        write(tmp_path, "a", PretrainingOptions(max_seq_length=4))
