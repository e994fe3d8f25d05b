"""Records what PEFT computes with its adapters, for the tests that ours compute the same.

For a tiny random encoder of each kind that classifies: the model as a directory, adapters as PEFT writes them, logits,
and those after some steps of training. Some of the adapters have a pooler, or the layer before the logits, that was
trained whole.

    pip install -r benchmarks/requirements.txt peft
    python benchmarks/peft_goldens.py        # writes tests/golden/peft

With `--check=DIR` it loads adapters that Trellis wrote beside the model of a directory, and prints the logits of PEFT
for the recorded batch, the greatest difference from the recorded ones last.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import peft
import torch
import transformers

GOLDENS = Path(__file__).parents[1] / "tests" / "golden" / "peft"
RANK, ALPHA, N_CLASSES, VOCAB_SIZE, BATCH_SIZE, LENGTH = 2, 3.0, 3, 48, 4, 12
N_STEPS, LEARNING_RATE = 5, 1e-2
TYPED = ("input_ids", "attention_mask", "token_type_ids")
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 16,
    "num_labels": N_CLASSES,
    "attn_implementation": "eager",
}
_OF_MODERNBERT = {"num_hidden_layers": 1, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_OF_MODERNBERT |= {"cls_token_id": 1, "sep_token_id": 2, "classifier_pooling": "cls"}
MODELS: dict[str, Any] = {
    "bert": lambda: transformers.BertForSequenceClassification(transformers.BertConfig(**_SIZES)),
    "albert": lambda: transformers.AlbertForSequenceClassification(
        transformers.AlbertConfig(**_SIZES, embedding_size=8)
    ),
    "roberta": lambda: transformers.RobertaForSequenceClassification(
        transformers.RobertaConfig(**_SIZES | {"type_vocab_size": 1, "pad_token_id": 0})
    ),
    "distilbert": lambda: transformers.DistilBertForSequenceClassification(
        transformers.DistilBertConfig(
            dim=16,
            hidden_dim=24,
            n_layers=1,
            n_heads=2,
            vocab_size=VOCAB_SIZE,
            max_position_embeddings=16,
            num_labels=3,
        )
    ),
    "modernbert": lambda: transformers.ModernBertForSequenceClassification(
        transformers.ModernBertConfig(**_SIZES | _OF_MODERNBERT)
    ),
}
ADAPTERS: dict[str, dict[str, Any]] = {
    "bert": {"target_modules": ["query", "value", "attention.output.dense", "intermediate.dense"]},
    "albert": {"target_modules": ["query", "attention.dense", "ffn"], "modules_to_save": ["classifier", "pooler"]},
    "roberta": {"target_modules": ["query", "attention.output.dense"]},
    "distilbert": {"target_modules": ["q_lin", "out_lin", "lin1"]},
    "modernbert": {"target_modules": ["Wqkv", "attn.Wo"], "modules_to_save": ["classifier", "head"]},
}


def batch() -> dict[str, torch.Tensor]:
    """Rows of different lengths."""
    lengths = torch.randint(LENGTH // 2, LENGTH + 1, (BATCH_SIZE, 1))
    mask = (torch.arange(LENGTH)[None] < lengths).long()
    return {
        "input_ids": torch.randint(1, VOCAB_SIZE, (BATCH_SIZE, LENGTH)) * mask,
        "attention_mask": mask,
        "token_type_ids": (torch.arange(LENGTH)[None] >= LENGTH // 2).long() * mask,
    }


def record(kind: str) -> None:
    """Writes the model, the adapters and what they answer."""
    folder = GOLDENS / kind
    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(0)
    model = MODELS[kind]()
    for parameter in model.parameters():
        # Larger than in a new model, so that every part has a say in the logits.
        parameter.data += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(folder / "model")
    config = peft.LoraConfig(task_type="SEQ_CLS", r=RANK, lora_alpha=ALPHA, lora_dropout=0.1, **ADAPTERS[kind])
    adapted = peft.get_peft_model(model, config).eval()
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = 0.3 * torch.randn_like(parameter)
    adapted.save_pretrained(folder / "adapter")
    for file in (folder / "adapter").glob("README.md"):
        file.unlink()
    names = TYPED if kind in ("bert", "albert") else TYPED[:2]
    inputs = {name: array for name, array in batch().items() if name in names}
    with torch.no_grad():
        logits = adapted(**inputs).logits
        with adapted.disable_adapter():
            plain = adapted(**inputs).logits
    arrays = {name: array.numpy().astype(np.int32) for name, array in inputs.items()}
    np.savez_compressed(folder / "logits.npz", logits=logits.numpy(), plain=plain.numpy(), **arrays)
    record_steps(kind)
    print(f"{folder}: {sum(file.stat().st_size for file in folder.rglob('*') if file.is_file()):,} bytes")


def record_steps(kind: str) -> None:
    """Writes the losses of some steps from the recorded adapters on, and the logits after them; nothing is dropped."""
    folder = GOLDENS / kind
    recorded = np.load(folder / "logits.npz")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder / "model")
    adapted = peft.PeftModel.from_pretrained(model, folder / "adapter", is_trainable=True).eval()
    inputs = {name: torch.tensor(recorded[name]).long() for name in TYPED if name in recorded}
    labels = torch.arange(BATCH_SIZE) % N_CLASSES
    trained = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, weight_decay=0.0)
    losses = []
    for _ in range(N_STEPS):
        loss = torch.nn.functional.cross_entropy(adapted(**inputs).logits, labels)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        logits = adapted(**inputs).logits
    np.savez_compressed(folder / "steps.npz", losses=losses, logits=logits.numpy(), labels=labels.numpy())


def check(directory: Path, kind: str) -> None:
    """Prints what PEFT answers with adapters that we wrote, and how far that is from what is recorded."""
    recorded = np.load(GOLDENS / kind / "logits.npz")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(GOLDENS / kind / "model")
    adapted = peft.PeftModel.from_pretrained(model, directory).eval()
    with torch.no_grad():
        names = [name for name in TYPED if name in recorded]
        logits = adapted(**{name: torch.tensor(recorded[name]).long() for name in names}).logits.numpy()
    difference = float(np.abs(logits - recorded["logits"]).max())
    print(json.dumps({"logits": logits.tolist(), "greatest difference": difference}))


def main() -> None:
    """Records, or checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", metavar="DIR", type=Path)
    parser.add_argument("--kind", choices=[*MODELS], default="bert", help="of which model the adapters to check are")
    flags = parser.parse_args()
    if flags.check is not None:
        check(flags.check, flags.kind)
        return
    for kind in MODELS:
        record(kind)


if __name__ == "__main__":
    main()
