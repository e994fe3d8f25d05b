"""A compact GPT in torch, with nanoGPT's settings: the peer of benchmarks/decoder_speed.py."""

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Causal attention and a feedforward block, each with a norm before it."""

    def __init__(self, width: int, n_heads: int, *, bias: bool) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=1e-5, bias=bias) for _ in range(2))
        self.to_heads = nn.Linear(width, 3 * width, bias=bias)
        self.from_heads = nn.Linear(width, width, bias=bias)
        self.wider = nn.Linear(width, 4 * width, bias=bias)
        self.narrower = nn.Linear(4 * width, width, bias=bias)

    def forward(self, hidden: Any) -> Any:
        n_rows, length, width = hidden.shape
        parts = self.to_heads(self.norms[0](hidden)).view(n_rows, length, 3, self.n_heads, width // self.n_heads)
        query, key, value = (part.transpose(1, 2) for part in parts.unbind(2))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.from_heads(mixed.transpose(1, 2).reshape(n_rows, length, width))
        inner = functional.gelu(self.wider(self.norms[1](hidden)), approximate="tanh")
        return hidden + self.narrower(inner)


class GPT(nn.Module):
    """The losses of the tokens that come next."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width, n_layers, bias = config["hidden_size"], config["num_layers"], config["use_bias"]
        self.words = nn.Embedding(config["vocab_size"], width)
        self.places = nn.Embedding(config["max_position_embeddings"], width)
        self.blocks = nn.ModuleList(Block(width, config["num_attention_heads"], bias=bias) for _ in range(n_layers))
        self.norm = nn.LayerNorm(width, eps=1e-5, bias=bias)
        for name, weights in self.named_parameters():
            if weights.dim() == 1:
                continue
            is_added = name.endswith(("from_heads.weight", "narrower.weight"))
            nn.init.normal_(weights, std=0.02 / (math.sqrt(2 * n_layers) if is_added else 1))
        for module in self.modules():
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, ids: Any, following: Any) -> Any:
        hidden = self.words(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            hidden = block(hidden)
        logits = functional.linear(self.norm(hidden), self.words.weight)
        return functional.cross_entropy(logits.flatten(0, 1), following.flatten(), ignore_index=-1, reduction="sum")


class TorchRun:
    """A model with its optimizer: AdamW with decay of all that has two axes, gradients clipped to a norm of 1.

    Args:
        config: Sizes, by the names of a `DecoderConfig`.
    """

    def __init__(
        self, config: dict[str, Any], *, seed: int, device: str, dtype: str = "float32", compiled: bool = False
    ) -> None:
        torch.manual_seed(seed)
        torch.set_float32_matmul_precision("high")
        self.device = device
        self.model = GPT(config).to(device)
        self.call: Any = torch.compile(self.model) if compiled else self.model
        weights = list(self.model.parameters())
        groups = [
            {"params": [each for each in weights if each.dim() >= 2], "weight_decay": 0.1},
            {"params": [each for each in weights if each.dim() < 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8, fused=device == "cuda")
        is_low = dtype == "bfloat16"
        self.context: Any = torch.autocast(device, torch.bfloat16) if is_low else nullcontext()

    def train(self, batches: Iterator[tuple[Any, Any]], *, rates: Sequence[float]) -> None:
        """Takes a step with each batch, at its rate."""
        for (ids, following), rate in zip(batches, rates, strict=False):
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            with self.context:
                loss = self.call(self._put(ids), self._put(following)) / following.size
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        if self.device == "cuda":
            torch.cuda.synchronize()

    @torch.no_grad()
    def evaluate(self, batches: Iterator[tuple[Any, Any]]) -> float:
        """The mean loss over all tokens."""
        total, n_tokens = 0.0, 0
        for ids, following in batches:
            with self.context:
                total += float(self.call(self._put(ids), self._put(following)))
            n_tokens += int((following >= 0).sum())
        return total / n_tokens

    def _put(self, array: Any) -> Any:
        tensor = torch.from_numpy(array).long()
        return tensor.pin_memory().to(self.device, non_blocking=True) if self.device == "cuda" else tensor
