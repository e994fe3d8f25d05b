"""Records what sentence-transformers computes, for the tests that ours computes the same.

For two tiny random models, one with the mean of the tokens and normalized, one with the first token alone: the folder,
and the vectors of some sentences. For some random vectors: each loss and its gradient.

    pip install -r benchmarks/requirements.txt sentence-transformers
    python benchmarks/sentence_transformers_goldens.py        # writes tests/golden/sentence_transformers
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import losses, modules as models

GOLDENS = Path(__file__).parents[1] / "tests" / "golden" / "sentence_transformers"
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*SPECIALS, "the", "cat", "dog", "sat", "ran", "on", "a", "mat", "##s", "##ed", "jump", ".", "?", "who"]
SENTENCES = [
    "The cat sat on a mat.",
    "Who jumped?",
    "dogs",
    "A dog ran on the mats. Who sat on a dog? The cat jumped on the dogs.",
    "elephants",
]
N, WIDTH, SCALE, MARGIN = 6, 8, 20.0, 0.5
BOTH_WAYS: Any = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}


class Given(torch.nn.Module):
    """A model that returns the vectors that it is given."""

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns the features."""
        return features


def write_model(folder: Path, *, pooling: str, is_normalized: bool, seq_length: int) -> list[list[float]]:
    """Writes a tiny model as sentence-transformers does; returns the vectors of the sentences."""
    torch.manual_seed(len(pooling))
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=16,
        initializer_range=0.3,
    )
    with tempfile.TemporaryDirectory() as scratch:
        transformers.BertModel(config).save_pretrained(scratch)
        model = tokenizers.models.WordPiece({word: n for n, word in enumerate(WORDS)}, unk_token="[UNK]")
        tokenizer = tokenizers.Tokenizer(model)
        tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
        tokenizer.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
        special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
        transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(scratch)
        encoder = models.Transformer(scratch, max_seq_length=seq_length)
    modules: list[Any] = [encoder, models.Pooling(16, pooling_mode=pooling)]
    sentence_model = SentenceTransformer(modules=modules + [models.Normalize()] * is_normalized, device="cpu")
    sentence_model.save(str(folder), create_model_card=False)
    vectors: list[list[float]] = sentence_model.encode(SENTENCES).tolist()
    return vectors


def computed(loss: torch.nn.Module, vectors: np.ndarray, labels: Any = None) -> dict[str, Any]:
    """A loss and its gradient."""
    sides = [torch.tensor(vectors[:, side], requires_grad=True) for side in range(vectors.shape[1])]
    value = loss([{"sentence_embedding": side} for side in sides], labels)
    value.backward()
    grads = np.stack([side.grad.numpy() for side in sides if side.grad is not None], axis=1)
    return {"loss": value.item(), "grads": grads.tolist()}


def write_losses() -> dict[str, Any]:
    """The losses of random vectors of length 1."""
    random = np.random.default_rng(0)
    vectors = random.normal(size=(N, 3, WIDTH)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    scores = random.uniform(0, 1, N).astype(np.float32)
    model, pairs, labels = Given(), vectors[:, :2], torch.tensor(scores)
    in_batch = losses.MultipleNegativesRankingLoss(model, scale=SCALE)
    triplet = losses.TripletLoss(model, losses.TripletDistanceMetric.COSINE, triplet_margin=MARGIN)
    return {
        "vectors": vectors.tolist(),
        "scores": scores.tolist(),
        "scale": SCALE,
        "margin": MARGIN,
        "in_batch": computed(in_batch, pairs),
        "in_batch_with_negatives": computed(in_batch, vectors),
        "bidirectional": computed(losses.MultipleNegativesRankingLoss(model, scale=SCALE, **BOTH_WAYS), pairs),
        "triplet": computed(triplet, vectors),
        "cosine_similarity": computed(losses.CosineSimilarityLoss(model), pairs, labels),
        "cosent": computed(losses.CoSENTLoss(model, scale=SCALE), pairs, labels),
    }


def main() -> None:
    """Writes all goldens anew."""
    shutil.rmtree(GOLDENS, ignore_errors=True)
    GOLDENS.mkdir(parents=True)
    vectors = {
        "mean": write_model(GOLDENS / "mean", pooling="mean", is_normalized=True, seq_length=12),
        "cls": write_model(GOLDENS / "cls", pooling="cls", is_normalized=False, seq_length=16),
    }
    (GOLDENS / "vectors.json").write_text(json.dumps({"sentences": SENTENCES, "vectors": vectors}) + "\n")
    (GOLDENS / "losses.json").write_text(json.dumps(write_losses()) + "\n")


if __name__ == "__main__":
    main()
