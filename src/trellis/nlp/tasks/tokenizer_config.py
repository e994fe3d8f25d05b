"""How text is cut, in the words of `transformers`: the fields of `tokenizer_config.json`."""

from collections.abc import Mapping

from trellis.aliases import JSON
from trellis.nlp.data import TextSettings

_CLASSES: Mapping[tuple[str, str], str] = {
    ("distilbert", "WordPiece"): "DistilBertTokenizer",
    ("roberta", "BPE"): "RobertaTokenizer",
    ("xlm_roberta", "SentencePiece"): "XLMRobertaTokenizer",
}
"""By the type of encoder and how words are cut, where it is not the class of all that are cut like that."""
_USUAL_CLASSES = {"WordPiece": "BertTokenizer", "SentencePiece": "AlbertTokenizer"}
_ANY_CLASS = "PreTrainedTokenizerFast"
_WITHOUT_TYPES = ["input_ids", "attention_mask"]


def tokenizer_config(text: TextSettings, *, encoder_type: str, n_positions: int) -> dict[str, JSON]:
    """Returns the fields of `tokenizer_config.json`, by which `transformers` cuts text as it is cut here."""
    tokenizer = text.build_tokenizer()
    name = _CLASSES.get((encoder_type, tokenizer.family))
    if name is None:
        name = _USUAL_CLASSES.get(tokenizer.family, _ANY_CLASS) if tokenizer.has_types else _ANY_CLASS
    values: dict[str, JSON] = {"tokenizer_class": name, "model_max_length": n_positions}
    if not tokenizer.has_types or encoder_type == "modernbert":
        values["model_input_names"] = list(_WITHOUT_TYPES)
    if name == "AlbertTokenizer":
        return values | {"do_lower_case": text.lower_case, "keep_accents": not text.strip_accents}
    if name in ("BertTokenizer", "DistilBertTokenizer"):
        rules = ("strip_accents", "tokenize_chinese_chars")
        return values | {"do_lower_case": text.lower_case} | {rule: getattr(text, rule) for rule in rules}
    known = {"cls_token": tokenizer.cls, "sep_token": tokenizer.sep, "mask_token": tokenizer.mask}
    values |= {**known, "pad_token": tokenizer.tokens_of([tokenizer.pad_id])[0]}
    values |= {} if tokenizer.has_types else {"bos_token": tokenizer.cls, "eos_token": tokenizer.sep}
    if name == "RobertaTokenizer":
        values["add_prefix_space"] = not tokenizer.tells_spaces
    return values
