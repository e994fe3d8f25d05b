"""Tokens a second of a masked-LM step of ModernBERT-base, in padded and in packed rows, beside `transformers`.

Run it as `python benchmarks/modern_encoder_speed.py --out DIR`; benchmarks/README.md says what is measured and how.
Writes `modern_encoder_speed.json` and `modern_encoder_speed.md` into DIR.
"""

import argparse
import gc
import importlib.util
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

# Both frameworks share the memory of one GPU.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import numpy as np
from loop_overhead_report import describe_machine

Run = Callable[[int], float]

# The lengths of the paragraphs of WikiText-2 (validation), in WordPieces with [CLS] and [SEP]: 33 quantiles, from the
# least to the greatest.
QUANTILES = (
    *(3, 8, 13, 19, 30, 40, 49, 58, 65, 73, 82, 89, 95, 102, 108, 117, 122),
    *(129, 135, 141, 149, 156, 164, 172, 181, 190, 201, 212, 226, 241, 261, 299, 467),
)
MASKED_SHARE, LEARNING_RATE, N_BATCHES, N_WARM_STEPS = 0.3, 1e-4, 4, 2


@dataclass(frozen=True)
class Sizes:
    """Of the model and of its batches."""

    vocab_size: int = 50368
    hidden_size: int = 768
    num_layers: int = 22
    num_attention_heads: int = 12
    intermediate_size: int = 1152
    local_attention: int = 128
    length: int = 1024
    batch_size: int = 16
    """Rows of a packed batch."""
    n_packed: int = 8
    """So many times as many rows has a padded batch: about as many sequences."""
    padded_length: int = 512
    """The length of a padded row, which holds the longest sequence."""
    dtype: str = "bfloat16"

    @property
    def n_predictions(self) -> int:
        """Those of a packed row."""
        return int(MASKED_SHARE * self.length)


TINY = Sizes(
    vocab_size=512,
    hidden_size=64,
    num_layers=3,
    num_attention_heads=2,
    intermediate_size=96,
    length=512,
    batch_size=1,
    dtype="float32",
)


def draw_lengths(n: int, *, seed: int) -> np.ndarray:
    """Lengths of sequences that follow each other in a shuffled text."""
    shares = np.random.default_rng(seed).random(n)
    return np.interp(shares, np.linspace(0, 1, len(QUANTILES)), QUANTILES).astype(np.int64)


def build_batches(sizes: Sizes, *, is_packed: bool) -> dict[str, np.ndarray]:
    """`N_BATCHES` batches one after the other: several sequences a row, or one."""
    from trellis.nlp.data.packing import pack, place

    n_rows = N_BATCHES * sizes.batch_size * (1 if is_packed else sizes.n_packed)
    length = sizes.length if is_packed else sizes.padded_length
    if is_packed:
        lengths = draw_lengths(n_rows * 16, seed=0)
        rows = pack(lengths, capacity=length)
        members = [rows[number] for number in range(n_rows)]
        lengths, counts = lengths[np.concatenate(members)], np.array([len(row) for row in members])
    else:
        lengths, counts = draw_lengths(n_rows, seed=0), np.ones(n_rows, np.int64)
    places = place(lengths, counts=counts)
    generator = np.random.default_rng(1)
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    position = np.concatenate([np.arange(one) for one in lengths])
    target = (places.rows[sequence], places.starts[sequence] + position)
    segments, positions = (np.zeros((n_rows, length), np.int32) for _ in range(2))
    segments[target], positions[target] = places.numbers[sequence], position
    mask = (segments > 0).astype(np.int32)
    n_predictions = int(MASKED_SHARE * length)
    # The masked ones first, in their order; then, without a weight, any others.
    scores = np.where(mask, generator.random(mask.shape), 2.0)
    chosen = np.sort(np.argsort(scores, axis=1)[:, :n_predictions], axis=1)
    wanted = (MASKED_SHARE * mask.sum(axis=1)).astype(np.int64)[:, None]
    weights = (np.arange(n_predictions) < np.maximum(wanted, 1)).astype(np.float32)
    batch = {
        "input_word_ids": generator.integers(5, sizes.vocab_size, mask.shape, dtype=np.int32) * mask,
        "input_mask": mask,
        "input_type_ids": np.zeros_like(mask),
        "masked_lm_positions": chosen.astype(np.int32),
        "masked_lm_ids": generator.integers(5, sizes.vocab_size, chosen.shape, dtype=np.int32),
        "masked_lm_weights": weights,
    }
    return batch | ({"segment_ids": segments, "positions": positions} if is_packed else {})


def rows_of_batch(batches: dict[str, np.ndarray], number: int) -> dict[str, np.ndarray]:
    """One of the batches."""
    n_rows = len(batches["input_mask"]) // N_BATCHES
    first = number % N_BATCHES * n_rows
    return {name: array[first : first + n_rows] for name, array in batches.items()}


def trellis_run(sizes: Sizes, *, is_packed: bool, is_exact: bool = False) -> Run:
    """The masked-LM task in a training loop."""
    import jax
    import optax

    import trellis
    from trellis.nlp.data import BertPretrainDataConfig
    from trellis.nlp.models import EncoderConfig, ModernBertEncoderConfig, PretrainerConfig
    from trellis.nlp.tasks import MaskedLMConfig
    from trellis.runtime import Placement, RuntimeConfig
    from trellis.tasks import lasting_init
    from trellis.trainer.stage import computing_model

    encoder = ModernBertEncoderConfig(
        vocab_size=sizes.vocab_size,
        hidden_size=sizes.hidden_size,
        num_layers=sizes.num_layers,
        num_attention_heads=sizes.num_attention_heads,
        intermediate_size=sizes.intermediate_size,
        local_attention=sizes.local_attention,
    )
    data = BertPretrainDataConfig(seq_length=sizes.length, use_next_sentence_label=False)
    model_config = PretrainerConfig(
        encoder=EncoderConfig(type="modernbert", modernbert=encoder), cls_heads=[], mlm_activation="gelu_exact"
    )
    task = trellis.get_task(MaskedLMConfig(model=model_config, train_data=data, validation_data=data))
    model = task.build_model()
    runtime = RuntimeConfig(mixed_precision_dtype=None if sizes.dtype == "float32" else sizes.dtype)
    computing = computing_model(model, runtime=runtime)
    optimizer, metrics = optax.adamw(LEARNING_RATE), task.build_metrics(training=True)

    def step(state: Any, batch: Any, keys: Any) -> Any:
        return task.train_step(batch, state=state, model=computing, optimizer=optimizer, metrics=metrics, keys=keys)

    batches = build_batches(sizes, is_packed=is_packed)
    stream = trellis.ExampleStream(batches, batch_size=len(batches["input_mask"]) // N_BATCHES, shuffle=False)
    loop = trellis.TrainLoop(
        init=lasting_init(model),
        input_sample=(stream.batch(0),),
        task=trellis.TrainTask(data=stream, optimizer=optimizer, train_step=step),
        rnkey=jax.random.key(0),
        n_steps=N_WARM_STEPS,
        n_steps_per_checkpoint=1_000_000,
        devices=Placement(jax.devices()[:1], exact=is_exact),
        grads=False,
        stdout=False,
    )

    def run(n_steps: int) -> float:
        started = time.perf_counter()
        for checkpoint in loop(n_steps=loop.step + n_steps):
            jax.block_until_ready(checkpoint.model_params)
        return time.perf_counter() - started

    return run


def torch_run(sizes: Sizes, *, is_packed: bool, is_compiled: bool = False) -> Run:
    """`ModernBertForMaskedLM` with PyTorch's attention, which decodes the masked positions alone, and fused AdamW."""
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    no_ids = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"))
    config = transformers.ModernBertConfig(
        vocab_size=sizes.vocab_size,
        hidden_size=sizes.hidden_size,
        num_hidden_layers=sizes.num_layers,
        num_attention_heads=sizes.num_attention_heads,
        intermediate_size=sizes.intermediate_size,
        local_attention=sizes.local_attention,
        sparse_prediction=True,
        attn_implementation="sdpa",
        **no_ids,
    )
    model = transformers.ModernBertForMaskedLM(config).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=1e-4, fused=True)
    called = torch.compile(model) if is_compiled else model
    batches = [
        torch_inputs(rows_of_batch(build_batches(sizes, is_packed=is_packed), number), sizes, device)
        for number in range(N_BATCHES)
    ]
    done = 0

    def run(n_steps: int) -> float:
        nonlocal done
        started = time.perf_counter()
        for _ in range(n_steps):
            with torch.autocast(device, dtype=torch.bfloat16, enabled=sizes.dtype == "bfloat16"):
                loss = called(**batches[done % N_BATCHES]).loss
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            done += 1
        if device == "cuda":
            torch.cuda.synchronize()
        loss.item()
        return time.perf_counter() - started

    return run


def torch_inputs(batch: dict[str, np.ndarray], sizes: Sizes, device: str) -> dict[str, Any]:
    """A batch for `ModernBertForMaskedLM`: labels are -100 where nothing is masked; packed rows have whole masks."""
    import torch

    ids = torch.from_numpy(batch["input_word_ids"]).long()
    predicted = torch.from_numpy(batch["masked_lm_weights"]) > 0
    labels = torch.full_like(ids, -100)
    rows = torch.arange(len(ids))[:, None].expand_as(predicted)
    positions = torch.from_numpy(batch["masked_lm_positions"]).long()
    labels[rows[predicted], positions[predicted]] = torch.from_numpy(batch["masked_lm_ids"]).long()[predicted]
    inputs: dict[str, Any] = {"input_ids": ids, "labels": labels}
    mask = torch.from_numpy(batch["input_mask"])
    if "segment_ids" in batch:
        segments = torch.from_numpy(batch["segment_ids"])
        # Padding sees padding: a row of which nothing is seen would be NaN.
        whole = (segments[:, None, :, None] == segments[:, None, None, :]).to(device)
        places = torch.arange(ids.shape[1], device=device)
        is_near = (places[:, None] - places).abs() <= sizes.local_attention // 2
        masks = {"full_attention": whole, "sliding_attention": whole & is_near}
        inputs |= {"position_ids": torch.from_numpy(batch["positions"]).long(), "attention_mask": masks}
    else:
        inputs["attention_mask"] = mask
    return {name: value if isinstance(value, dict) else value.to(device) for name, value in inputs.items()}


CONTENDERS: dict[str, tuple[bool, Callable[[Sizes], Run]]] = {
    "Trellis, packed": (True, partial(trellis_run, is_packed=True)),
    "Trellis, packed, exact": (True, partial(trellis_run, is_packed=True, is_exact=True)),
    "Trellis, padded": (False, partial(trellis_run, is_packed=False)),
    "transformers, packed": (True, partial(torch_run, is_packed=True)),
    "transformers, padded": (False, partial(torch_run, is_packed=False)),
    "transformers, padded, compiled": (False, partial(torch_run, is_packed=False, is_compiled=True)),
}
"""What is measured, by its name: whether it reads packed rows, and what builds it."""
OURS = "Trellis, packed"


@dataclass(frozen=True)
class Measurement:
    """One contender in one round."""

    contender: str
    round: int
    tokens_per_second: float


def measure(names: Sequence[str], sizes: Sizes, *, n_rounds: int, n_steps: int) -> list[Measurement]:
    """Measures every contender once a round, in an order that is rotated from round to round."""
    tokens = {
        is_packed: build_batches(sizes, is_packed=is_packed)["input_mask"].sum() / N_BATCHES
        for is_packed in (False, True)
    }
    runs: dict[str, Run] = {}
    for name in names:
        started = time.perf_counter()
        try:
            run = CONTENDERS[name][1](sizes)
            run(N_WARM_STEPS)
            run(n_steps)
        except Exception as error:  # noqa: BLE001  (what one contender cannot do must not cost the others)
            print(f"  {name} cannot be measured: {type(error).__name__}: {str(error)[:300]}", flush=True)
            gc.collect()
            continue
        runs[name] = run
        print(f"  {name} is warm after {time.perf_counter() - started:.1f} s", flush=True)
    found = []
    for number in range(n_rounds):
        order = list(runs)
        order = order[number % len(order) :] + order[: number % len(order)]
        for name in order:
            rate = float(tokens[CONTENDERS[name][0]]) * n_steps / runs[name](n_steps)
            found.append(Measurement(name, number, rate))
    return found


@dataclass(frozen=True)
class Attended:
    """The forward and backward pass of one attention in a window, in milliseconds."""

    length: int
    whole_rows: float
    blocks: float


def measure_attention(sizes: Sizes, *, n_tokens: int, lengths: Sequence[int], n_rounds: int) -> list[Attended]:
    """Blocks beside the plain formula, for as many tokens in rows of several lengths."""
    import jax
    import jax.numpy as jnp

    from trellis.nlp.models.layers import EncoderInputs
    from trellis.nlp.models.local_attention import attend_in_blocks, attend_in_whole_rows

    reach = sizes.local_attention // 2
    found = []
    for length in lengths:
        size = sizes.hidden_size // sizes.num_attention_heads
        shape = (max(1, n_tokens // length), length, sizes.num_attention_heads, size)
        heads = [jax.random.normal(jax.random.key(seed), shape, jnp.dtype(sizes.dtype)) for seed in range(3)]
        ids = jnp.broadcast_to(1 + jnp.arange(length) // 128, shape[:2])
        tokens = EncoderInputs(ids, ids, ids > 0, None, ids)

        def timed(attention: Any, heads: Any = heads, tokens: Any = tokens) -> list[float]:
            def loss(query: Any, key: Any, value: Any) -> Any:
                return jnp.sum(attention(query, key, value, tokens, reach=reach).astype(jnp.float32) ** 2)

            step = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))
            times = []
            for _ in range(1 + n_rounds):
                started = time.perf_counter()
                jax.block_until_ready(step(*heads))
                times.append(1000 * (time.perf_counter() - started))
            return times[1:]

        blocks = timed(partial(attend_in_blocks, size=max(128, reach)))
        whole = timed(attend_in_whole_rows)
        found.append(Attended(length, statistics.median(whole), statistics.median(blocks)))
        print(f"  attention, rows of {length}: {found[-1]}", flush=True)
    return found


def describe_device() -> str:
    """The device that both compute on."""
    import jax

    return f"{jax.devices()[0].device_kind}, JAX {jax.__version__}"


def report(
    found: Sequence[Measurement], attended: Sequence[Attended], sizes: Sizes, *, machine: str, n_steps: int
) -> str:
    """The tables, as Markdown."""
    rounds = sorted({item.round for item in found})
    speed = {(item.contender, item.round): item.tokens_per_second for item in found}
    shares = {
        is_packed: 100 * float(build_batches(sizes, is_packed=is_packed)["input_mask"].mean())
        for is_packed in (True, False)
    }
    setting = (
        f"A masked-LM step (AdamW, {sizes.dtype}, no dropout) of {sizes.num_layers} layers, {sizes.hidden_size} wide, "
        f"vocabulary {sizes.vocab_size}; sequences as long as the paragraphs of WikiText-2. Packed rows of "
        f"{sizes.length} are {shares[True]:.0f} % full, {sizes.batch_size} in a batch; padded ones of "
        f"{sizes.padded_length} {shares[False]:.0f} %, {sizes.batch_size * sizes.n_packed} in a batch. Tokens that are "
        f"padding do not count. Medians of {len(rounds)} rounds of {n_steps} steps; × is how many times as fast "
        f"{OURS} is.\n"
    )
    lines = [
        "# Tokens a second of a modern encoder\n",
        f"Made by `python benchmarks/modern_encoder_speed.py` on {machine}.\n",
        setting,
        "| contender | tokens/s | × |",
        "|---|---|---|",
    ]
    for name in dict.fromkeys(item.contender for item in found):
        median = statistics.median(speed[name, number] for number in rounds)
        ratio = "" if (OURS, 0) not in speed else f"{_ratio(speed, name, rounds):.2f}"
        lines.append(f"| {name} | {median:,.0f} | {ratio} |")
    if attended:
        setting = "One attention in a window, forward and backward, for the same number of tokens in rows of several"
        lines += [
            f"\n{setting} lengths: milliseconds, medians.\n",
            "| length | whole rows | blocks | × |",
            "|---|---|---|---|",
        ]
    for item in attended:
        ratio = item.whole_rows / item.blocks
        lines.append(f"| {item.length} | {item.whole_rows:.2f} | {item.blocks:.2f} | {ratio:.2f} |")
    return "\n".join(lines) + "\n"


def _ratio(speed: dict[tuple[str, int], float], name: str, rounds: Sequence[int]) -> float:
    return statistics.median(speed[OURS, number] / speed[name, number] for number in rounds)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, shows the tables and writes them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the directory for the two files")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, help="all by default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="in a measurement")
    parser.add_argument("--layers", type=int, help="fewer of them compile sooner")
    parser.add_argument("--batch-size", type=int, help="rows of a packed batch")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, as for a CPU")
    parser.add_argument("--quick", action="store_true", help="3 rounds, without the slowest to start")
    parser.add_argument("--no-attention", action="store_true", help="no table of attention alone")
    flags = parser.parse_args(arguments)
    sizes = TINY if flags.tiny else Sizes()
    sizes = replace(sizes, **({"num_layers": flags.layers} if flags.layers else {}))
    sizes = replace(sizes, **({"batch_size": flags.batch_size} if flags.batch_size else {}))
    names = flags.contenders or list(CONTENDERS)
    if flags.quick and not flags.contenders:
        names = [name for name in names if "exact" not in name and "compiled" not in name]
    if not all(importlib.util.find_spec(package) for package in ("torch", "transformers")):
        names = [name for name in names if not name.startswith("transformers")]
        print("  torch or transformers is not installed: Trellis alone is measured.")
    n_rounds = min(3, flags.rounds) if flags.quick else flags.rounds
    lengths = (256, 384, 512, 1024, 2048) if flags.tiny else (256, 384, 512, 1024, 2048, 4096, 8192)
    n_tokens = 2048 if flags.tiny else 16384
    attended: list[Attended] = []
    found = measure(names, sizes, n_rounds=n_rounds, n_steps=flags.steps)
    if not flags.no_attention:
        attended = measure_attention(sizes, n_tokens=n_tokens, lengths=lengths, n_rounds=n_rounds)
    machine = f"{describe_device()}; {describe_machine()}"
    text = report(found, attended, sizes, machine=machine, n_steps=flags.steps)
    flags.out.mkdir(parents=True, exist_ok=True)
    values = {
        "machine": machine,
        "sizes": asdict(sizes),
        "n_steps": flags.steps,
        "measurements": [asdict(item) for item in found],
        "attention": [asdict(item) for item in attended],
    }
    (flags.out / "modern_encoder_speed.json").write_text(json.dumps(values, indent=1) + "\n")
    (flags.out / "modern_encoder_speed.md").write_text(text)
    print(f"\n{text}\nWritten to modern_encoder_speed.md and modern_encoder_speed.json in `{flags.out}`.")


if __name__ == "__main__":
    main()
