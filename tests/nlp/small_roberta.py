"""A tiny RoBERTa as `transformers` leaves it: weights, settings, and a vocabulary of byte-level BPE."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import tokenizers

from tests.nlp.models.tiny_encoders import weights
from trellis.bridges import write_hugging_face
from trellis.nlp.models import BertPretrainer, EncoderConfig, PretrainerConfig, build_encoder

SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
TEXT = "The Cat sat on a mat . the dogs jumped on the cat . who sat ? naïve café"
N_POSITIONS = 40


def write_merges(folder: Path, text: str = TEXT) -> None:
    """`vocab.json` and `merges.txt`."""
    trained = tokenizers.ByteLevelBPETokenizer()
    # Left to itself the package numbers signs that are equally frequent in any order.
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    trained.train_from_iterator([text] * 3, vocab_size=300, special_tokens=[*SPECIALS, *letters], show_progress=False)
    folder.mkdir(parents=True, exist_ok=True)
    trained.save_model(str(folder))


def write_byte_tokenizer(folder: Path, text: str = TEXT, *, mask_takes_space: bool = True) -> str:
    """The `tokenizer.json` of a RoBERTa."""
    write_merges(folder, text)
    model = tokenizers.models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    tokenizer.add_special_tokens([*SPECIALS[:-1], tokenizers.AddedToken("<mask>", lstrip=mask_takes_space)])
    for name in ("vocab.json", "merges.txt"):
        (folder / name).unlink()
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder / "tokenizer.json")


def write_roberta(folder: Path, *, text: str = TEXT, **settings: Any) -> str:
    """A directory with an encoder and a masked-LM head."""
    file = write_byte_tokenizer(folder / "tokenizer", text)
    sizes = {"vocab_size": tokenizers.Tokenizer.from_file(file).get_vocab_size(), "hidden_size": 8, "num_layers": 1}
    sizes |= {"num_attention_heads": 2, "intermediate_size": 8, "max_position_embeddings": N_POSITIONS + 2}
    encoder = EncoderConfig(type="roberta", roberta=sizes | settings)
    model = BertPretrainer(PretrainerConfig(encoder=encoder, mlm_activation="gelu_exact"), build_encoder(encoder))
    names = ("input_word_ids", "input_mask", "input_type_ids")
    params = weights(model, {name: jnp.ones((1, 4), jnp.int32) for name in names})["params"]
    write_hugging_face(
        folder / "weights",
        config=encoder.as_dict(),
        params=params,
        tokenizer_config={"tokenizer_class": "RobertaTokenizer"},
        vocab_files={"tokenizer.json": file},
    )
    return str(folder / "weights")
