"""Whether checkpoints of Hugging Face's go in, answer as `transformers` does, go out and answer the same.

Makes some three hundred tiny random checkpoints with `transformers` itself: each kind of encoder, with every head that
ours have, with odd settings, in several forms of files. Each is read by `trellis.bridges`, asked by a model
of ours, written by `trellis.bridges`, and loaded by `transformers` again. What cannot be expressed has to be refused
by the name of its setting.

    pip install -r benchmarks/requirements.txt
    python benchmarks/hugging_face_parity.py        # writes benchmarks/results/hugging_face_parity.md
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import torch
import transformers
from flax.traverse_util import flatten_dict, unflatten_dict
from tokenizers import ByteLevelBPETokenizer, Tokenizer
from tokenizers.processors import TemplateProcessing

from trellis.bridges import read_hugging_face, read_hugging_face_settings, write_hugging_face
from trellis.errors import TrellisError
from trellis.nlp.answers import load_predictor
from trellis.nlp.models import (
    BertClassifier,
    BertPretrainer,
    BertSpanLabeler,
    BertTagger,
    ClsHeadConfig,
    EncoderConfig,
    PretrainerConfig,
    build_encoder,
)
from trellis.nlp.tasks import read_hugging_face_experiment
from trellis.nlp.tasks.encoder_task import EncoderTask
from trellis.tasks import get_task

RESULTS = Path(__file__).parent / "results" / "hugging_face_parity.md"
TOLERANCE = 1e-5
"""Of a difference, relative to the largest output."""
VOCAB_SIZE, LENGTH, BATCH_SIZE = 48, 12, 4
HEADS = (
    "Model",
    "ForPreTraining",
    "ForMaskedLM",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
)
SEVERAL = "multi_label_classification"
PRETRAINED_ON_PAIRS = ("bert", "albert", "mobilebert")
CLASSES = {
    **dict(zip(PRETRAINED_ON_PAIRS, ("Bert", "Albert", "MobileBert"), strict=True)),
    "roberta": "Roberta",
    "xlm_roberta": "XLMRoberta",
    "distilbert": "DistilBert",
    "modernbert": "ModernBert",
}
SIZES: Mapping[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 16,
}
OWN_SIZES: Mapping[str, Mapping[str, Any]] = {
    "bert": {},
    "albert": {"embedding_size": 8},
    "mobilebert": {"embedding_size": 8, "intra_bottleneck_size": 8, "num_feedforward_networks": 2},
    "roberta": {"type_vocab_size": 1, "layer_norm_eps": 1e-5, "max_position_embeddings": 18},
    "xlm_roberta": {"type_vocab_size": 1, "layer_norm_eps": 1e-5, "max_position_embeddings": 18},
    "distilbert": {},
    "modernbert": {
        "local_attention": 4,
        "global_attn_every_n_layers": 2,
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")),
    },
}
WITHOUT_TYPES = ("distilbert", "modernbert")
DISTILBERT_NAMES = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
}
N_POSITIONS = 64
TEXTS = [
    ("the good film",),
    ("The Good Film", "the good film"),
    ("Café, cafe and CAFÉ!", "naïve?"),
    ("北京 is 東京",),
    ("a" * 30, "GOOD"),
]
NAMES = {"id2label": {0: "no", 1: "perhaps", 2: "yes"}, "label2id": {"no": 0, "perhaps": 1, "yes": 2}}


@dataclass(frozen=True)
class Case:
    """A checkpoint: what it is of, and what is odd about it."""

    kind: str
    head: str
    oddity: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    shard_size: str | None = None
    without_pooler: bool = False
    edited: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `config.json` that are changed after it was written."""
    refused: str = ""
    """What the error has to name, if the checkpoint cannot be expressed."""


@dataclass
class Row:
    """What came out for a case."""

    case: Case
    difference_in: float = float("nan")
    difference_out: float = float("nan")
    scale: float = float("nan")
    text: str = ""

    @property
    def is_right(self) -> bool:
        if self.case.refused:
            return self.case.refused in self.text
        most = TOLERANCE * max(self.scale, 1.0)
        return not self.text and self.difference_in <= most and self.difference_out <= most


def cases() -> Iterator[Case]:
    for kind in PRETRAINED_ON_PAIRS:
        for head in HEADS:
            yield Case(kind, head, "usual")
            yield Case(kind, head, "relu", {"hidden_act": "relu"})
            yield Case(kind, head, "gelu_new, layer_norm_eps 1e-3", {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3})
            yield Case(kind, head, "file in bfloat16", dtype=torch.bfloat16)
        for activation in ("gelu", "silu", "tanh", "gelu_fast", "gelu_pytorch_tanh", "linear"):
            yield Case(kind, "ForMaskedLM", activation, {"hidden_act": activation})
        classifier = "ForSequenceClassification"
        yield Case(kind, classifier, "1 label: a number", {"num_labels": 1})
        yield Case(kind, classifier, "3 named labels", NAMES)
        yield Case(kind, classifier, "type_vocab_size 1", {"type_vocab_size": 1})
        yield Case(kind, classifier, "type_vocab_size 3", {"type_vocab_size": 3})
        yield Case(kind, classifier, "file in float16", dtype=torch.float16)
        yield Case(kind, "ForPreTraining", "file in shards", shard_size="4KB")
        yield Case(kind, "ForQuestionAnswering", "no padding id", {"pad_token_id": None})
        yield Case(kind, "ForMaskedLM", "1 layer, 4 heads", {"num_hidden_layers": 1, "num_attention_heads": 4})
        yield Case(kind, "Model", "no pooler", without_pooler=True)
        yield Case(kind, "ForMaskedLM", "untied", {"tie_word_embeddings": False}, refused="tie_word_embeddings")
        relative = {"position_embedding_type": "relative_key"}
        yield Case(kind, "Model", "relative positions", edited=relative, refused="position_embedding_type")
        yield Case(kind, "Model", "activation mish", {"hidden_act": "mish"}, refused="hidden_act")
        yield Case(kind, classifier, "several labels at once", {"num_labels": 3, "problem_type": SEVERAL})
        yield Case(kind, "ForTokenClassification", "3 named labels", NAMES)
    yield from odd_alberts()
    yield from odd_mobileberts()
    for kind in CLASSES:
        if kind not in PRETRAINED_ON_PAIRS:
            yield from others(kind)
    yield from odd_robertas()
    yield from odd_modernberts()


def others(kind: str) -> Iterator[Case]:
    """Encoders that were not pretrained on pairs."""
    for head in HEADS:
        if head != "ForPreTraining":
            yield Case(kind, head, "usual")
            yield Case(kind, head, "relu", {"hidden_act": "relu"})
            yield Case(kind, head, "gelu_new", {"hidden_act": "gelu_new"})
            yield Case(kind, head, "file in bfloat16", dtype=torch.bfloat16)
    classifier = "ForSequenceClassification"
    yield Case(kind, classifier, "1 label: a number", {"num_labels": 1})
    yield Case(kind, classifier, "3 named labels", NAMES)
    yield Case(kind, classifier, "file in float16", dtype=torch.float16)
    yield Case(kind, "ForMaskedLM", "file in shards", shard_size="4KB")
    yield Case(kind, "ForMaskedLM", "1 layer, 4 heads", {"num_hidden_layers": 1, "num_attention_heads": 4})
    yield Case(kind, "Model", "activation mish", {"hidden_act": "mish"}, refused="mish")
    yield Case(kind, classifier, "several labels at once", {"num_labels": 3, "problem_type": SEVERAL})
    yield Case(kind, "ForMaskedLM", "untied", {"tie_word_embeddings": False}, refused="tie_word_embeddings")
    yield Case(kind, "ForTokenClassification", "3 named labels", NAMES)


def odd_robertas() -> Iterator[Case]:
    for kind in ("roberta", "xlm_roberta"):
        yield Case(kind, "Model", "no pooler", without_pooler=True)
        yield Case(kind, "ForSequenceClassification", "padding id 0", {"pad_token_id": 0})
        yield Case(kind, "ForSequenceClassification", "padding id 5", {"pad_token_id": 5})
        yield Case(kind, "ForMaskedLM", "layer_norm_eps 1e-3", {"layer_norm_eps": 1e-3})
    yield Case("roberta", "ForSequenceClassification", "type_vocab_size 2", {"type_vocab_size": 2})
    sinusoidal = {"sinusoidal_pos_embds": True}
    yield Case("distilbert", "Model", "positions by sines", sinusoidal)


def odd_modernberts() -> Iterator[Case]:
    kind, classifier = "modernbert", "ForSequenceClassification"
    for head in HEADS:
        if head != "ForPreTraining":
            deep = {"num_hidden_layers": 5, "global_attn_every_n_layers": 3, "local_attention": 6}
            yield Case(kind, head, "5 layers, every 3rd global", deep)
    yield Case(kind, classifier, "mean pooling", {"classifier_pooling": "mean"})
    yield Case(kind, "Model", "norm_eps 1e-3", {"norm_eps": 1e-3})
    thetas = {name: {"rope_type": "default", "rope_theta": 100.0} for name in ("full_attention", "sliding_attention")}
    yield Case(kind, "Model", "both thetas 100", {"rope_parameters": thetas})
    yield Case(kind, "Model", "a window wider than rows, of an odd width", {"local_attention": 33})
    older = {"layer_types": None, "rope_parameters": None, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0}
    yield Case(kind, "ForMaskedLM", "settings as in older files", edited={**older, "global_attn_every_n_layers": 2})
    for name in ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"):
        yield Case(kind, classifier, name, {name: True}, refused=name)
    yield Case(kind, "ForMaskedLM", "no decoder_bias", {"decoder_bias": False}, refused="decoder_bias")
    relu = {"classifier_activation": "relu"}
    yield Case(kind, classifier, "a head with another activation", relu, refused="classifier_activation")
    yarn = {"full_attention": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}}
    yield Case(kind, "Model", "rope_type yarn", edited={"rope_parameters": yarn}, refused="rope_parameters")
    windows = ["sliding_attention"] * 2
    yield Case(kind, "Model", "windows alone", edited={"layer_types": windows}, refused="layer_types")


def odd_alberts() -> Iterator[Case]:
    yield Case("albert", "ForMaskedLM", "embedding_size 16, as wide as hidden_size", {"embedding_size": 16})
    yield Case("albert", "ForPreTraining", "embedding_size 24, wider than hidden_size", {"embedding_size": 24})
    yield Case("albert", "Model", "2 groups", {"num_hidden_groups": 2}, refused="num_hidden_groups")
    yield Case("albert", "Model", "2 inner layers", {"inner_group_num": 2}, refused="inner_group_num")


def odd_mobileberts() -> Iterator[Case]:
    kind = "mobilebert"
    for head in HEADS:
        yield Case(kind, head, "layer_norm", {"normalization_type": "layer_norm"})
        yield Case(kind, head, "no classifier_activation", {"classifier_activation": False})
    wide = {"embedding_size": 16}
    narrow = {"use_bottleneck_attention": True}
    yield Case(kind, "ForMaskedLM", "embedding_size 16, as wide as hidden_size", wide)
    yield Case(kind, "ForMaskedLM", "1 feedforward network", {"num_feedforward_networks": 1})
    yield Case(kind, "ForMaskedLM", "4 feedforward networks", {"num_feedforward_networks": 4})
    yield Case(kind, "ForPreTraining", "use_bottleneck_attention", narrow)
    alone = {**narrow, "key_query_shared_bottleneck": False}
    yield Case(kind, "ForPreTraining", "use_bottleneck_attention, no shared bottleneck", alone)
    same = {"intra_bottleneck_size": 16, "key_query_shared_bottleneck": False}
    yield Case(kind, "ForMaskedLM", "no shared bottleneck", same)
    eps = {"normalization_type": "layer_norm", "layer_norm_eps": 1e-5}
    yield Case(kind, "ForMaskedLM", "layer_norm, layer_norm_eps 1e-5", eps)
    yield Case(kind, "Model", "no bottleneck", {"use_bottleneck": False}, refused="use_bottleneck")
    yield Case(kind, "Model", "no trigrams", {"trigram_input": False}, refused="trigram_input")
    yield Case(kind, "Model", "padding id 3", {"pad_token_id": 3}, refused="pad_token_id")


def build(case: Case) -> Any:
    settings = {**SIZES, **OWN_SIZES[case.kind], **case.settings}
    if case.kind == "distilbert":
        settings = {DISTILBERT_NAMES.get(name, name): value for name, value in settings.items()}
    if case.kind == "modernbert" and "hidden_act" in settings:
        activation = settings.pop("hidden_act")
        settings |= {"hidden_activation": activation, "classifier_activation": activation}
    config = getattr(transformers, f"{CLASSES[case.kind]}Config")(**settings)
    options = {"add_pooling_layer": False} if case.without_pooler else {}
    model = getattr(transformers, f"{CLASSES[case.kind]}{case.head}")(config, **options).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases too: at their starting values they hide mistakes
            parameter += 0.2 * torch.randn_like(parameter)
    return model.to(case.dtype)


def inputs_for(case: Case) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    mask = np.arange(LENGTH)[None] < generator.integers(LENGTH // 2, LENGTH + 1, (BATCH_SIZE, 1))
    n_types = case.settings.get("type_vocab_size", OWN_SIZES[case.kind].get("type_vocab_size", 2))
    pad = case.settings.get("pad_token_id", 1) if "roberta" in case.kind else 0
    ids = np.where(mask, generator.integers(pad + 1, VOCAB_SIZE, (BATCH_SIZE, LENGTH)), pad)
    return {
        "input_word_ids": ids.astype(np.int32),
        "input_mask": mask.astype(np.int32),
        "input_type_ids": (generator.integers(0, n_types, (BATCH_SIZE, LENGTH)) * mask).astype(np.int32),
    }


def their_answers(directory: Path, case: Case, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What `transformers` answers with a directory, in float32 and with nothing newly made."""
    model_class = getattr(transformers, f"{CLASSES[case.kind]}{case.head}")
    options = {"add_pooling_layer": False} if case.without_pooler else {}
    model, report = model_class.from_pretrained(directory, dtype=torch.float32, output_loading_info=True, **options)
    new = [name for name in report["missing_keys"] if not (case.without_pooler and "pooler." in name)]
    if new or report["mismatched_keys"]:
        raise RuntimeError(f"transformers misses {new} {report['mismatched_keys']}")
    tensors = {name: torch.from_numpy(array).long() for name, array in inputs.items()}
    types = {} if case.kind in WITHOUT_TYPES else {"token_type_ids": tensors["input_type_ids"]}
    with torch.no_grad():
        inputs_by_name = {"input_ids": tensors["input_word_ids"], "attention_mask": tensors["input_mask"]}
        outputs = model.eval()(**inputs_by_name, **types)
    mask = inputs["input_mask"][..., None]
    values = {
        "Model": lambda: {"sequence": outputs.last_hidden_state.numpy() * mask, **_pooled(outputs)},
        "ForPreTraining": lambda: {
            "mlm": outputs.prediction_logits.numpy() * mask,
            "next": (outputs.sop_logits if case.kind == "albert" else outputs.seq_relationship_logits).numpy(),
        },
        "ForMaskedLM": lambda: {"mlm": outputs.logits.numpy() * mask},
        "ForSequenceClassification": lambda: {"logits": outputs.logits.numpy()},
        "ForTokenClassification": lambda: {"logits": outputs.logits.numpy() * mask},
        "ForQuestionAnswering": lambda: {
            "start": outputs.start_logits.numpy() * mask[..., 0],
            "end": outputs.end_logits.numpy() * mask[..., 0],
        },
    }
    return values[case.head]()


def _pooled(outputs: Any) -> dict[str, np.ndarray]:
    pooled = getattr(outputs, "pooler_output", None)
    return {} if pooled is None else {"pooled": pooled.numpy()}


def our_model(case: Case, encoder_config: EncoderConfig, n_classes: int) -> Any:
    encoder = build_encoder(encoder_config)
    activation = "gelu_exact" if "roberta" in case.kind else encoder_config.get().hidden_activation
    has_pooler = case.settings.get("classifier_activation", True)
    if case.head == "ForMaskedLM":
        return BertPretrainer(PretrainerConfig(encoder=encoder_config, mlm_activation=activation), encoder)
    if case.head == "ForPreTraining":
        inner = encoder_config.get().hidden_size if has_pooler else 0
        heads = [ClsHeadConfig(name="next_sentence", inner_dim=inner)]
        config = PretrainerConfig(encoder=encoder_config, mlm_activation=activation, cls_heads=heads)
        return BertPretrainer(config, encoder)
    if case.head == "ForSequenceClassification":
        head = "multi_label" if case.settings.get("problem_type") == SEVERAL else "sentence_prediction"
        return BertClassifier(encoder, num_classes=n_classes, use_encoder_pooler=not has_pooler, head=head)
    if case.head == "ForTokenClassification":
        return BertTagger(encoder, num_classes=n_classes)
    return BertSpanLabeler(encoder) if case.head == "ForQuestionAnswering" else encoder


def our_answers(model: Any, params: Any, case: Case, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    is_encoder = case.head == "Model"
    outputs = model.apply({"params": params["encoder"] if is_encoder else params}, inputs)
    mask = inputs["input_mask"][..., None]
    if case.head == "ForSequenceClassification":
        return {"logits": np.asarray(outputs)}
    if case.head == "ForTokenClassification":
        return {"logits": np.asarray(outputs) * mask}
    if case.head == "ForQuestionAnswering":
        return {end: np.asarray(outputs[f"{end}_logits"]) * mask[..., 0] for end in ("start", "end")}
    if is_encoder:
        answers = {"sequence": np.asarray(outputs["sequence_output"]) * mask}
        has_pooler = not case.without_pooler and case.kind not in WITHOUT_TYPES
        return answers | ({"pooled": np.asarray(outputs["pooled_output"])} if has_pooler else {})
    answers = {"mlm": np.asarray(outputs["mlm_logits"]) * mask}
    return answers | ({"next": np.asarray(outputs["next_sentence"])} if "next_sentence" in outputs else {})


def as_a_run_holds(model: Any, params: Any, case: Case, inputs: Mapping[str, np.ndarray]) -> Any:
    """The parameters of our model: those that were read, and new ones where the checkpoint has none, as a pooler."""
    is_encoder = case.head == "Model"
    shapes = nn.meta.unbox(jax.eval_shape(model.init, jax.random.key(0), inputs))["params"]
    generator = np.random.default_rng(1)
    new = jax.tree.map(lambda leaf: generator.normal(size=leaf.shape).astype(leaf.dtype), shapes)
    own = flatten_dict({"encoder": new} if is_encoder else new)
    given = flatten_dict(params)
    missing = ["/".join(name) for name in own if name not in given and "pooler" not in name]
    if missing:
        raise RuntimeError(f"the checkpoint gives no {', '.join(missing)}")
    return unflatten_dict({name: given.get(name, array) for name, array in own.items()})


def largest_difference(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> float:
    if first.keys() != second.keys():
        raise RuntimeError(f"answers have other names: {sorted(first)} and {sorted(second)}")
    return max(float(np.max(np.abs(first[name] - second[name]))) for name in first)


def run(case: Case, directory: Path) -> Row:
    row = Row(case)
    torch.manual_seed(0)
    build(case).save_pretrained(directory / "in", **({"max_shard_size": case.shard_size} if case.shard_size else {}))
    if case.edited:
        file = directory / "in" / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | dict(case.edited)))
    inputs = inputs_for(case)
    try:
        settings = read_hugging_face_settings(directory / "in")
        if not settings.classifies_as_ours:
            row.text = f"problem_type is {settings.problem_type!r}"
            return row
        fields, params = read_hugging_face(directory / "in")
    except TrellisError as error:
        row.text = str(error).replace(str(directory), "…")
        return row
    encoder_config = EncoderConfig(fields)
    model = our_model(case, encoder_config, settings.n_classes)
    params = as_a_run_holds(model, params, case, inputs)
    expected = their_answers(directory / "in", case, inputs)
    row.scale = max(float(np.max(np.abs(array))) for array in expected.values())
    row.difference_in = largest_difference(our_answers(model, params, case, inputs), expected)
    write_hugging_face(
        directory / "out", config=encoder_config.as_dict(), params=params, label_names=settings.label_names
    )
    row.difference_out = largest_difference(their_answers(directory / "out", case, inputs), expected)
    again = read_hugging_face_settings(directory / "out")
    if again.label_names != settings.label_names:
        row.text = f"labels {again.label_names} instead of {settings.label_names}"
    return row


@dataclass(frozen=True)
class TextCase:
    """A classifier with a tokenizer, asked in words."""

    kind: str
    oddity: str
    rules: Mapping[str, Any] = field(default_factory=dict)
    left_out: Sequence[str] = ()
    """Files of the tokenizer that are removed, as from an older folder."""


def text_cases() -> Iterator[TextCase]:
    for kind in ("bert", "mobilebert"):
        yield TextCase(kind, "uncased")
        yield TextCase(kind, "cased", {"do_lower_case": False})
    yield TextCase("bert", "uncased, accents kept", {"strip_accents": False})
    yield TextCase("bert", "cased, accents dropped", {"do_lower_case": False, "strip_accents": True})
    yield TextCase("bert", "ideographs in a row", {"tokenize_chinese_chars": False})
    yield TextCase("bert", "uncased, vocab.txt alone", left_out=("tokenizer.json",))
    yield TextCase("bert", "cased, vocab.txt alone", {"do_lower_case": False}, left_out=("tokenizer.json",))
    yield TextCase("albert", "uncased")
    yield TextCase("albert", "cased", {"do_lower_case": False})
    yield TextCase("albert", "uncased, accents kept", {"keep_accents": True})
    yield TextCase("albert", "WordPiece", {"wordpiece": True})
    yield TextCase("distilbert", "uncased")
    yield TextCase("distilbert", "cased", {"do_lower_case": False})
    yield TextCase("roberta", "bytes")
    yield TextCase("roberta", "bytes, a space before the first word", {"add_prefix_space": True})
    yield TextCase("xlm_roberta", "pieces")
    yield TextCase("modernbert", "bytes")


def build_tokenizer(case: TextCase, directory: Path) -> Any:
    """A tokenizer that has a piece for each letter and for some words."""
    letters = [chr(code) for code in (*range(33, 91), *range(97, 123), *map(ord, "éüÉ北京東"))]
    words = ["good", "Good", "film", "Film", "the", "The", "cafe", "café"]
    rules = {name: value for name, value in case.rules.items() if name != "wordpiece"}
    if case.kind == "albert" and "wordpiece" not in case.rules:
        specials = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
        pieces = ["▁", *letters, *(f"▁{word}" for word in words)]
        scores = [(piece, -1.0 - len(specials) / (number + 2)) for number, piece in enumerate(pieces)]
        return transformers.AlbertTokenizer(vocab=[(special, 0.0) for special in specials] + scores, **rules)
    if case.kind == "roberta":
        specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        trained = ByteLevelBPETokenizer()
        texts = [" ".join(part for parts in TEXTS for part in parts)] * 3
        trained.train_from_iterator(texts, vocab_size=320, special_tokens=specials, show_progress=False)
        trained.save_model(str(directory))
        return transformers.RobertaTokenizer(
            vocab=str(directory / "vocab.json"), merges=str(directory / "merges.txt"), **rules
        )
    if case.kind == "modernbert":
        return build_modernbert_tokenizer()
    if case.kind == "xlm_roberta":
        specials = ["<s>", "<pad>", "</s>", "<unk>"]
        pieces = ["▁", *letters, *(f"▁{word}" for word in words)]
        scores = [(piece, -1.0 - len(specials) / (number + 2)) for number, piece in enumerate(pieces)]
        vocabulary = [*((special, 0.0) for special in specials), *scores, ("<mask>", 0.0)]
        return transformers.XLMRobertaTokenizer(vocab=vocabulary, **rules)
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters), *words]
    (directory / "vocab.txt").write_text("\n".join(tokens) + "\n")
    kind = transformers.DistilBertTokenizer if case.kind == "distilbert" else transformers.BertTokenizer
    return kind(str(directory / "vocab.txt"), **rules)


def build_modernbert_tokenizer() -> Any:
    """Pieces of bytes, with the special tokens of BERT."""
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trained = ByteLevelBPETokenizer()
    texts = [" ".join(part for parts in TEXTS for part in parts)] * 3
    trained.train_from_iterator(texts, vocab_size=320, special_tokens=specials, show_progress=False)
    ends = [(token, specials.index(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer = Tokenizer.from_str(trained.to_str())
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=ends
    )
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_input_names=["input_ids", "attention_mask"],
        **dict(zip(names, specials, strict=True)),
    )


def run_text(case: TextCase, directory: Path) -> Row:
    torch.manual_seed(0)
    tokenizer = build_tokenizer(case, directory)
    sizes = {**SIZES, "vocab_size": len(tokenizer), "initializer_range": 0.3}
    sizes["max_position_embeddings"] = N_POSITIONS + (2 if "roberta" in case.kind else 0)
    of_model = Case(case.kind, "ForSequenceClassification", f"text: {case.oddity}", {**sizes, **NAMES})
    build(of_model).save_pretrained(directory / "in")
    tokenizer.save_pretrained(directory / "in")
    for name in case.left_out:
        (directory / "in" / name).unlink()
        shutil.copyfile(directory / "vocab.txt", directory / "in" / "vocab.txt")
    row = Row(of_model, scale=1.0)
    params = read_hugging_face_experiment(directory / "in")
    ours = [answer.values["probabilities"] for answer in load_predictor(str(directory / "in"), params=params)(TEXTS)]
    expected = their_probabilities(directory / "in")
    row.difference_in = float(np.max(np.abs(np.asarray(ours) - expected)))
    task = get_task(params.task)
    assert isinstance(task, EncoderTask)
    _, weights = read_hugging_face(directory / "in")
    kept = {name: weights[name] for name in ("encoder", "sentence_prediction")}
    task.write_hugging_face(kept, output_dir=directory / "out")
    row.difference_out = float(np.max(np.abs(their_probabilities(directory / "out") - expected)))
    if read_hugging_face_settings(directory / "out").label_names != tuple(NAMES["id2label"].values()):
        row.text = "other labels"
    return row


def their_probabilities(directory: Path) -> np.ndarray:
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(directory).eval()
    with torch.no_grad():
        # In the same rows as here: the last word of a MobileBERT sees the padding behind it, if there is some.
        rows: dict[str, Any] = {"padding": "max_length", "max_length": N_POSITIONS}
        if getattr(model.config, "type_vocab_size", 1) > 1:
            rows["return_token_type_ids"] = True
        logits = [model(**tokenizer(*parts, **rows, return_tensors="pt")).logits for parts in TEXTS]
    return torch.cat(logits).softmax(-1).numpy()


def page(rows: list[Row]) -> Iterator[str]:
    answered = [row for row in rows if not row.case.refused]
    right = [row for row in answered if row.is_right]
    refused = [row for row in rows if row.case.refused]
    named = [row for row in refused if row.is_right]
    yield "# Checkpoints of Hugging Face's, in and out"
    yield ""
    yield "Made by `benchmarks/hugging_face_parity.py` with real `transformers`; each checkpoint is tiny and random."
    yield "*In* is the largest difference between the outputs of our model and those of `transformers` with the same"
    yield "directory; *out* is that between `transformers` with the directory that we wrote and with its own; *largest*"
    yield "is the largest output."
    yield "Rows that begin with *text* are asked in words, by the tokenizer in the directory."
    yield f"A row is right if both are within {TOLERANCE:g} of the largest output (or of 1)."
    yield ""
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}, JAX {jax.__version__}"
    yield f"{versions}, on a CPU in float32."
    yield ""
    yield "| | checkpoints | right | largest difference in | out |"
    yield "|---|---|---|---|---|"
    for kind in CLASSES:
        own = [row for row in answered if row.case.kind == kind]
        most = [max(getattr(row, f"difference_{way}") / max(row.scale, 1.0) for row in own) for way in ("in", "out")]
        yield f"| {kind} | {len(own)} | {sum(row.is_right for row in own)} | {most[0]:.1e} | {most[1]:.1e} |"
    yield f"| all that can be expressed | {len(answered)} | {len(right)} | | |"
    yield f"| refused by the name of a setting | {len(refused)} | {len(named)} | | |"
    yield ""
    yield "| model | what is odd | in | out | largest | |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        name = f"{CLASSES[row.case.kind]}{row.case.head}"
        if row.case.refused:
            verdict = f"refused: `{row.case.refused}`" if row.is_right else f"**{row.text or 'not refused'}**"
            yield f"| {name} | {row.case.oddity} | | | | {verdict} |"
        else:
            verdict = "right" if row.is_right else f"**wrong** {row.text}"
            numbers = f"{row.difference_in:.1e} | {row.difference_out:.1e} | {row.scale:.1f}"
            yield f"| {name} | {row.case.oddity} | {numbers} | {verdict} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output_file", type=Path, default=RESULTS)
    parser.add_argument("--only", default="", help="only cases with this in their name")
    arguments = parser.parse_args()
    rows = []
    jobs: list[tuple[Case, Callable[[Path], Row]]] = [(case, partial(run, case)) for case in cases()]
    for text_case in text_cases():
        case = Case(text_case.kind, "ForSequenceClassification", f"text: {text_case.oddity}")
        jobs.append((case, partial(run_text, text_case)))
    for case, job in jobs:
        name = f"{CLASSES[case.kind]}{case.head}: {case.oddity}"
        if arguments.only not in name:
            continue
        with tempfile.TemporaryDirectory() as directory:
            try:
                row = job(Path(directory))
            except (TrellisError, RuntimeError, ValueError, KeyError, OSError) as error:
                row = Row(case, text=f"{type(error).__name__}: {error}"[:300].replace("\n", " "))
        rows.append(row)
        state = "right" if row.is_right else f"WRONG {row.text}"
        print(f"{name}: {row.difference_in:.1e} {row.difference_out:.1e} {state}", flush=True)
    print(f"{sum(row.is_right for row in rows)} of {len(rows)} are right.")
    if not arguments.only:
        arguments.output_file.write_text("\n".join(page(rows)) + "\n")
    if not all(row.is_right for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
