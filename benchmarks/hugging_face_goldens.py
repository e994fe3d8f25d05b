"""Records what Hugging Face's models compute, for the tests that ours compute the same.

For a tiny random encoder of each kind: the model as a directory, outputs, gradients, the losses of fifty steps of AdamW
with the published exclusions from weight decay and clipping of gradients. For encoders that have heads of their own
kind, also the weights and outputs of a classifier and of a head for questions on the same encoder.

    pip install -r benchmarks/requirements.txt
    python benchmarks/hugging_face_goldens.py        # writes tests/golden/hugging_face
"""

import argparse
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

GOLDENS = Path(__file__).parents[1] / "tests" / "golden" / "hugging_face"
N_BATCHES, BATCH_SIZE, LENGTH, N_PREDICTIONS, VOCAB_SIZE = 5, 4, 12, 3, 48
N_STEPS, LEARNING_RATE, WEIGHT_DECAY, CLIP_NORM = 50, 2e-3, 0.01, 1.0
NOT_DECAYED = re.compile(r"LayerNorm|layer_norm|norm\.weight|bias")

_SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 16,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    # With a padding id torch leaves out a part of the gradient of that word's embedding.
    "pad_token_id": None,
    "attn_implementation": "eager",
}
MODELS: dict[str, Any] = {
    "bert": lambda: transformers.BertForPreTraining(transformers.BertConfig(**_SIZES)),
    "albert": lambda: transformers.AlbertForPreTraining(
        transformers.AlbertConfig(**_SIZES, embedding_size=8, classifier_dropout_prob=0.0)
    ),
    "mobilebert": lambda: transformers.MobileBertForPreTraining(
        transformers.MobileBertConfig(
            **_SIZES, embedding_size=8, intra_bottleneck_size=8, num_feedforward_networks=3, classifier_dropout=0.0
        )
    ),
    "roberta": lambda: transformers.RobertaForMaskedLM(
        transformers.RobertaConfig(**_SIZES | {"pad_token_id": 1, "type_vocab_size": 1, "layer_norm_eps": 1e-5})
    ),
    "distilbert": lambda: transformers.DistilBertForMaskedLM(
        transformers.DistilBertConfig(
            vocab_size=VOCAB_SIZE,
            dim=16,
            n_layers=2,
            n_heads=2,
            hidden_dim=24,
            max_position_embeddings=16,
            dropout=0.0,
            attention_dropout=0.0,
            pad_token_id=None,
            attn_implementation="eager",
        )
    ),
    "modernbert": lambda: transformers.ModernBertForMaskedLM(
        transformers.ModernBertConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=16,
            # The first and the last see whole rows, the second a window of three tokens on each side.
            num_hidden_layers=3,
            global_attn_every_n_layers=2,
            local_attention=6,
            num_attention_heads=2,
            intermediate_size=24,
            max_position_embeddings=16,
            **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")),
            attn_implementation="eager",
        )
    ),
}
CLASSES: Mapping[str, str] = {"roberta": "Roberta", "distilbert": "DistilBert", "modernbert": "ModernBert"}
"""Encoders without a head for next sentences, and with classifiers of their own kind."""
PADS: Mapping[str, int] = {"roberta": 1}
"""The ids of padding that are not 0."""


def batches(pad: int) -> dict[str, torch.Tensor]:
    """Several batches, one after the other, with rows of different lengths."""
    n = N_BATCHES * BATCH_SIZE
    lengths = torch.randint(LENGTH // 2, LENGTH + 1, (n, 1))
    mask = torch.arange(LENGTH)[None] < lengths
    positions = torch.stack([torch.randperm(int(length))[:N_PREDICTIONS] for length in lengths])
    return {
        "input_word_ids": torch.where(mask, torch.randint(pad + 1, VOCAB_SIZE, (n, LENGTH)), pad),
        "input_mask": mask.long(),
        "input_type_ids": ((torch.arange(LENGTH)[None] >= LENGTH // 2) & mask).long(),
        "masked_lm_positions": positions,
        "masked_lm_ids": torch.randint(1, VOCAB_SIZE, (n, N_PREDICTIONS)),
        "next_sentence_labels": torch.randint(0, 2, (n,)),
    }


def run(kind: str, model: Any, batch: dict[str, torch.Tensor]) -> Any:
    labels = torch.full_like(batch["input_word_ids"], -100)
    labels.scatter_(1, batch["masked_lm_positions"], batch["masked_lm_ids"])
    if kind in CLASSES:
        inputs = {"input_ids": batch["input_word_ids"], "attention_mask": batch["input_mask"]}
        return model(**inputs, labels=labels, output_hidden_states=True)
    order = "sentence_order_label" if kind == "albert" else "next_sentence_label"
    return model(
        input_ids=batch["input_word_ids"],
        attention_mask=batch["input_mask"],
        token_type_ids=batch["input_type_ids"],
        labels=labels,
        **{order: batch["next_sentence_labels"]},
        output_hidden_states=True,
    )


def train(kind: str, model: Any, data: dict[str, torch.Tensor]) -> torch.Tensor:
    named = dict(model.named_parameters())
    groups = [
        {"params": [p for name, p in named.items() if not NOT_DECAYED.search(name)], "weight_decay": WEIGHT_DECAY},
        {"params": [p for name, p in named.items() if NOT_DECAYED.search(name)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, eps=1e-7)
    losses = []
    for step in range(N_STEPS):
        start = step % N_BATCHES * BATCH_SIZE
        loss = run(kind, model, {name: array[start : start + BATCH_SIZE] for name, array in data.items()}).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(named.values(), CLIP_NORM)
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def heads_of(kind: str, directory: Path, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights and outputs of other heads on the encoder in a directory."""
    recorded = {}
    for head in ("SequenceClassification", "QuestionAnswering"):
        model = getattr(transformers, f"{CLASSES[kind]}For{head}").from_pretrained(directory).eval()
        with torch.no_grad():
            base = f"{model.base_model_prefix}."
            own = {name: p for name, p in model.named_parameters() if not name.startswith(base)}
            # Those of ModernBERT's heads have the same names.
            place = f"heads/{head}" if kind == "modernbert" else "heads"
            for name, parameter in own.items():
                parameter += 0.2 * torch.randn_like(parameter)
                recorded[f"{place}/{name}"] = parameter
            outputs = model(**inputs)
        if head == "SequenceClassification":
            recorded["outputs/sentence_prediction"] = outputs.logits
        else:
            recorded |= {f"outputs/{end}_logits": outputs[f"{end}_logits"] for end in ("start", "end")}
    return recorded


def record(kind: str, directory: Path) -> None:
    torch.manual_seed(0)
    model = MODELS[kind]().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases too: at their starting values they hide mistakes
            parameter += 0.2 * torch.randn_like(parameter)
    shutil.rmtree(directory, ignore_errors=True)
    model.save_pretrained(directory)
    data = batches(PADS.get(kind, 0))
    first = {name: array[:BATCH_SIZE] for name, array in data.items()}
    outputs = run(kind, model, first)
    outputs.loss.backward()
    with torch.no_grad():
        inputs = {"input_ids": first["input_word_ids"], "attention_mask": first["input_mask"]}
        types = {} if kind in CLASSES else {"token_type_ids": first["input_type_ids"]}
        encoded = model.base_model(**inputs, **types)
    recorded = {f"batches/{name}": array.int() for name, array in data.items()}
    recorded |= {"outputs/sequence_output": encoded.last_hidden_state, "outputs/loss": outputs.loss}
    if kind in CLASSES:
        recorded |= {"outputs/mlm_logits": outputs.logits, **heads_of(kind, directory, inputs)}
    else:
        recorded |= {
            "outputs/pooled_output": encoded.pooler_output,
            "outputs/mlm_logits": outputs.prediction_logits,
            "outputs/next_sentence": outputs.sop_logits if kind == "albert" else outputs.seq_relationship_logits,
        }
    recorded |= {f"gradients/{name}": p.grad for name, p in model.named_parameters()}
    recorded["losses"] = train(kind, model, data)
    arrays = {name: array.detach().contiguous().clone() for name, array in recorded.items()}
    save_file(arrays, directory / "golden.safetensors")
    print(kind, recorded["losses"][0].item(), recorded["losses"][-1].item())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output_dir", type=Path, default=GOLDENS)
    parser.add_argument("--only", choices=MODELS, action="append", help="an encoder; all by default")
    arguments = parser.parse_args()
    for kind in arguments.only or MODELS:
        record(kind, arguments.output_dir / kind)


if __name__ == "__main__":
    main()
