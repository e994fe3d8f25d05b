"""Records what Hugging Face's models compute, for the tests that ours compute the same.

For a tiny random BERT, ALBERT and MobileBERT: the model as a directory, outputs, gradients, the losses of fifty steps
of AdamW with the published exclusions from weight decay and clipping of gradients.

    pip install -r benchmarks/requirements.txt
    python benchmarks/hugging_face_goldens.py        # writes tests/golden/hugging_face
"""

import argparse
import re
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

GOLDENS = Path(__file__).parents[1] / "tests" / "golden" / "hugging_face"
N_BATCHES, BATCH_SIZE, LENGTH, N_PREDICTIONS, VOCAB_SIZE = 5, 4, 12, 3, 48
N_STEPS, LEARNING_RATE, WEIGHT_DECAY, CLIP_NORM = 50, 2e-3, 0.01, 1.0
NOT_DECAYED = re.compile("LayerNorm|layer_norm|bias")

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
}


def batches() -> dict[str, torch.Tensor]:
    """Several batches, one after the other, with rows of different lengths."""
    n = N_BATCHES * BATCH_SIZE
    lengths = torch.randint(LENGTH // 2, LENGTH + 1, (n, 1))
    mask = torch.arange(LENGTH)[None] < lengths
    positions = torch.stack([torch.randperm(int(length))[:N_PREDICTIONS] for length in lengths])
    return {
        "input_word_ids": torch.randint(1, VOCAB_SIZE, (n, LENGTH)) * mask,
        "input_mask": mask.long(),
        "input_type_ids": ((torch.arange(LENGTH)[None] >= LENGTH // 2) & mask).long(),
        "masked_lm_positions": positions,
        "masked_lm_ids": torch.randint(1, VOCAB_SIZE, (n, N_PREDICTIONS)),
        "next_sentence_labels": torch.randint(0, 2, (n,)),
    }


def run(kind: str, model: Any, batch: dict[str, torch.Tensor]) -> Any:
    labels = torch.full_like(batch["input_word_ids"], -100)
    labels.scatter_(1, batch["masked_lm_positions"], batch["masked_lm_ids"])
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


def record(kind: str, directory: Path) -> None:
    torch.manual_seed(0)
    model = MODELS[kind]().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases too: at their starting values they hide mistakes
            parameter += 0.2 * torch.randn_like(parameter)
    shutil.rmtree(directory, ignore_errors=True)
    model.save_pretrained(directory)
    data = batches()
    first = {name: array[:BATCH_SIZE] for name, array in data.items()}
    outputs = run(kind, model, first)
    outputs.loss.backward()
    with torch.no_grad():
        inputs = {"input_ids": first["input_word_ids"], "attention_mask": first["input_mask"]}
        encoded = getattr(model, kind)(**inputs, token_type_ids=first["input_type_ids"])
    recorded = {f"batches/{name}": array.int() for name, array in data.items()}
    recorded |= {
        "outputs/sequence_output": encoded.last_hidden_state,
        "outputs/pooled_output": encoded.pooler_output,
        "outputs/mlm_logits": outputs.prediction_logits,
        "outputs/next_sentence": outputs.sop_logits if kind == "albert" else outputs.seq_relationship_logits,
        "outputs/loss": outputs.loss,
    }
    recorded |= {f"gradients/{name}": p.grad for name, p in model.named_parameters()}
    recorded["losses"] = train(kind, model, data)
    arrays = {name: array.detach().contiguous().clone() for name, array in recorded.items()}
    save_file(arrays, directory / "golden.safetensors")
    print(kind, recorded["losses"][0].item(), recorded["losses"][-1].item())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output_dir", type=Path, default=GOLDENS)
    arguments = parser.parse_args()
    for kind in MODELS:
        record(kind, arguments.output_dir / kind)


if __name__ == "__main__":
    main()
