"""Settings of streams of text."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from trellis.data import DataConfig

FileType = Literal["tfrecord", "tfrecord_compressed"]
Tokenization = Literal["WordPiece", "SentencePiece"]
LabelType = Literal["int", "float"]
Documents = Literal["blank_lines", "headings"]
DocumentBorders = Literal["files", "blank_lines", "headings"]

_NO_EFFECT = {**DataConfig.no_effect, "file_type": "the content of a file tells what it is"}


@dataclass
class BertPretrainDataConfig(DataConfig):
    """Examples that `trellis data pretraining` has made, masked and all."""

    global_batch_size: int = 512
    is_training: bool | None = True
    seq_length: int = 512
    max_predictions_per_seq: int = 76
    use_next_sentence_label: bool = True
    use_position_id: bool = False
    use_v2_feature_names: bool = False
    file_type: FileType = "tfrecord"

    no_effect: ClassVar[Mapping[str, str]] = {**_NO_EFFECT, "use_v2_feature_names": "both kinds of names are read"}


@dataclass
class BertPretrainTextDataConfig(DataConfig):
    """Text to pretrain on, one sentence a line and an empty line between documents; masked anew in each epoch."""

    doc_batch_size: int = 8
    global_batch_size: int = 512
    is_training: bool | None = True
    seq_length: int = 512
    max_predictions_per_seq: int = 76
    use_next_sentence_label: bool = True
    text_field_names: list[str] = field(default_factory=lambda: ["text"])
    """In files of rows, the columns with text; each row is a document."""
    documents: Documents = "blank_lines"
    """What parts the documents of plain text: empty lines, or lines such as ` = Title = `, as WikiText has them."""
    vocab_file_path: str = ""
    """A vocabulary for WordPiece, or a model for SentencePiece."""
    masking_rate: float = 0.15
    use_whole_word_masking: bool = False
    file_type: FileType = "tfrecord"
    tokenization: Tokenization = "WordPiece"
    lower_case: bool = True
    max_ngram_size: int | None = None
    """Masks up to so many words in a row; needs whole words."""
    pack_sequences: bool = False
    """Whether several short sequences share a row, kept apart by `segment_ids`; without next sentences only."""
    cache_dir: str = ""
    """Where tokens are kept; the default is beside the files."""

    no_effect: ClassVar[Mapping[str, str]] = {**_NO_EFFECT, "doc_batch_size": "documents are tokenized before training"}


@dataclass
class TokenBlocksDataConfig(DataConfig):
    """Text as one row of tokens, cut into blocks of the same length; documents are joined by an end token."""

    global_batch_size: int = 12
    is_training: bool | None = True
    seq_length: int = 1024
    """How many tokens a block has."""
    text_field_names: list[str] = field(default_factory=lambda: ["text"])
    """In files of rows, the columns with text; each row is a document."""
    documents: DocumentBorders = "files"
    """What parts the documents of plain text: its files, empty lines, or lines such as ` = Title = `."""
    vocab_file: str = ""
    """A tokenizer.json of byte-level pieces, as GPT-2's; empty takes each byte for a token."""
    cache_dir: str = ""
    """Where tokens are kept; the default is beside the files."""


@dataclass
class SentencePredictionDataConfig(DataConfig):
    """Examples that `trellis data finetuning` has made of sentences or pairs of them."""

    global_batch_size: int = 32
    is_training: bool | None = True
    seq_length: int = 128
    """The most tokens of an example. Batches to train on are only as long as the longest example needs."""
    label_type: LabelType = "int"
    """`int` for classes, `float` for regression."""
    include_example_id: bool = False
    label_field: str = "label_ids"
    label_name: tuple[str, str] | None = None
    """A field, and a second name that its labels get in a batch."""
    file_type: FileType = "tfrecord"

    no_effect: ClassVar[Mapping[str, str]] = _NO_EFFECT


@dataclass
class SentencePredictionTextDataConfig(DataConfig):
    """Sentences, or pairs of them, in files of rows: TSV, CSV, JSONL, Parquet."""

    label_type: LabelType = "int"
    """`int` for classes, `float` for regression."""
    text_fields: list[str] | None = None
    """The columns with the text: one, or two for pairs."""
    label_field: str = "label"
    global_batch_size: int = 32
    seq_length: int = 128
    """The most tokens of an example. Batches to train on are only as long as the longest example needs."""
    is_training: bool | None = True
    tokenization: Tokenization = "WordPiece"
    vocab_file: str = ""
    """A vocabulary for WordPiece, or a model for SentencePiece."""
    lower_case: bool = True
    preprocessing_hub_module_url: str = ""
    file_type: FileType = "tfrecord"
    include_example_id: bool = False
    label_values: list[str] | None = None
    """What the classes are called, in their order. A file may have their names or their numbers; null: numbers, or the
    names that there are in the training data in alphabetical order."""
    column_names: list[str] | None = None
    """The columns of TSV or CSV files that have no header. A first line with all `text_fields` is one all the same."""
    cache_dir: str = ""
    """Where tokens are kept; the default is beside the files."""

    no_effect: ClassVar[Mapping[str, str]] = _NO_EFFECT


@dataclass
class MultiLabelDataConfig(DataConfig):
    """Sentences, or pairs of them, with any number of labels each, in files of rows: TSV, CSV, JSONL, Parquet."""

    text_fields: list[str] | None = None
    """The columns with the text: one, or two for pairs."""
    label_field: str = "labels"
    """The column with the labels of a row: a list or, in a table, names with `label_separator` between them."""
    label_fields: list[str] | None = None
    """Instead a column for each label, with 1 where it is there and 0 where not."""
    label_separator: str = ","
    global_batch_size: int = 32
    seq_length: int = 128
    """The most tokens of an example. Batches to train on are only as long as the longest example needs."""
    is_training: bool | None = True
    tokenization: Tokenization = "WordPiece"
    vocab_file: str = ""
    """A vocabulary for WordPiece, or a model for SentencePiece."""
    lower_case: bool = True
    column_names: list[str] | None = None
    """The columns of TSV or CSV files that have no header. A first line with all `text_fields` is one all the same."""
    cache_dir: str = ""
    """Where tokens are kept; the default is beside the files."""


@dataclass
class TaggingDataConfig(DataConfig):
    """Sentences whose words have tags: CoNLL's columns, rows with lists of words and of tags, or published records."""

    global_batch_size: int = 32
    is_training: bool | None = True
    seq_length: int = 128
    """The most tokens of an example; a longer sentence becomes several. Batches to train on are only as long as the
    longest example needs."""
    include_sentence_id: bool = False
    file_type: FileType = "tfrecord"
    words_field: str = "words"
    """In JSONL and Parquet the column with a list of words; in CSV and TSV with words between spaces."""
    tags_field: str = "tags"
    """The column with as many tags: names, or their numbers in `task.class_names`."""
    word_column: int = 0
    """Which of CoNLL's columns is the word, counted from 0; from the end below 0."""
    tag_column: int = -1
    """Which of them is the tag."""
    vocab_file: str = ""
    """A vocabulary for WordPiece, or a model for SentencePiece."""
    tokenization: Tokenization = "WordPiece"
    lower_case: bool = True
    cache_dir: str = ""
    """Where tokens are kept; the default is beside the files."""

    no_effect: ClassVar[Mapping[str, str]] = _NO_EFFECT


@dataclass
class QADataConfig(DataConfig):
    """Questions with a passage that answers them: SQuAD's JSON, rows, or what `trellis data finetuning` has made.

    Rows (CSV, TSV, JSONL, Parquet) have the columns `question`, `context` and `answers`.
    """

    global_batch_size: int = 48
    is_training: bool | None = True
    seq_length: int = 384
    version_2_with_negative: bool = False
    """Whether there are questions without an answer."""
    input_preprocessed_data_path: str = ""
    """Where features are kept; the default is beside the files."""
    doc_stride: int = 128
    """By how many tokens the windows over a long passage differ."""
    query_length: int = 64
    """Of the longest question, in tokens; longer ones are cut."""
    vocab_file: str = ""
    """A vocabulary for WordPiece, or a model for SentencePiece."""
    tokenization: Tokenization = "WordPiece"
    do_lower_case: bool = True
    xlnet_format: bool = False
    file_type: FileType = "tfrecord"

    no_effect: ClassVar[Mapping[str, str]] = _NO_EFFECT


@dataclass
class DualEncoderDataConfig(DataConfig):
    """Pairs of texts that belong together, in files of rows; with texts that do not, or with scores, if there are."""

    left_text_fields: list[str] = field(default_factory=lambda: ["left_input"])
    """The column with the first text of a pair, such as a question."""
    right_text_fields: list[str] = field(default_factory=lambda: ["right_input"])
    """The column with the second text, such as its answer."""
    negative_text_fields: list[str] = field(default_factory=list)
    """The column with a text that does not belong to the first; none if there is no such column."""
    score_field: str = ""
    """The column that says how alike the two texts are; empty if there is none."""
    score_range: tuple[float, float] = (0.0, 1.0)
    """The least score and the greatest, which stand for a similarity of 0 and of 1."""
    global_batch_size: int = 32
    is_training: bool | None = True
    seq_length: int = 128
    """The most tokens of a text. Batches to train on are only as long as the longest text needs."""
    tokenization: Tokenization = "WordPiece"
    vocab_file: str = ""
    """A vocabulary for WordPiece, or a model for SentencePiece."""
    lower_case: bool = True
    preprocessing_hub_module_url: str = ""
    file_type: FileType = "tfrecord"
    column_names: list[str] | None = None
    """The columns of TSV or CSV files that have no header."""
    cache_dir: str = ""
    """Where tokens are kept; the default is beside the files."""

    no_effect: ClassVar[Mapping[str, str]] = _NO_EFFECT
