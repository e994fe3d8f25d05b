"""Adapters (LoRA) beside training all weights, and beside PEFT: time of a step, peak memory, size of a checkpoint.

Random weights of the sizes of MiniLM-L6 or BERT-base, a classifier of two classes, batches of one length; AdamW. Each
case runs in a process of its own, so that its peak is its own.

    python benchmarks/adapters.py --out=/tmp/adapters                # on a GPU: about a minute
    python benchmarks/adapters.py --quick --out=/tmp/adapters        # tiny, anywhere
    python benchmarks/adapters.py --peft-path=DIR …                  # where peft lies, if it is not installed

Peaks are those of the allocators: XLA's `peak_bytes_in_use`, torch's `max_memory_allocated`; on a CPU the peak of the
process. Writes adapters.json and adapters.md.
"""

import argparse
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SIZES: dict[str, dict[str, int]] = {
    "tiny": {"layers": 2, "width": 32, "heads": 2, "inner": 64, "words": 100, "batch": 8, "length": 16},
    "minilm": {"layers": 6, "width": 384, "heads": 12, "inner": 1536, "words": 30522, "batch": 128, "length": 128},
    "bert-base": {"layers": 12, "width": 768, "heads": 12, "inner": 3072, "words": 30522, "batch": 64, "length": 256},
}
RANK, ALPHA, LEARNING_RATE, DROPOUT = 8, 16.0, 1e-4, 0.1
TARGETS = ["query", "value"]
CASES = {
    "trellis, all weights": ("trellis", False),
    "trellis, adapters": ("trellis", True),
    "torch, all weights": ("torch", False),
    "torch, peft": ("torch", True),
}


def run_trellis(size: dict[str, int], *, adapters: bool, dtype: str, n_steps: int) -> dict[str, Any]:
    """Steps of a loop of ours."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax
    import numpy as np
    import optax

    import trellis
    from trellis.nlp.models import BertClassifier, EncoderConfig, build_encoder
    from trellis.runtime import Precision
    from trellis.tasks import Lora

    fields = {
        "hidden_size": size["width"],
        "num_layers": size["layers"],
        "num_attention_heads": size["heads"],
        "intermediate_size": size["inner"],
        "vocab_size": size["words"],
        "max_position_embeddings": max(512, size["length"]),
        "dropout_rate": DROPOUT,
        "attention_dropout_rate": DROPOUT,
    }
    model = BertClassifier(build_encoder(EncoderConfig({"type": "bert", "bert": fields})), num_classes=2)
    lora = Lora(model, rank=RANK, alpha=ALPHA, targets=TARGETS, also=["sentence_prediction"]) if adapters else None
    lower = Precision(dtype).applied_to

    def apply(variables: Any, *inputs: Any, **options: Any) -> Any:
        run = lower(lambda *args, **more: model.apply(*args, **more, training=True))
        return (run if lora is None else lora.around(run))(variables, *inputs, **options)

    random = np.random.default_rng(0)
    shape = (size["batch"], size["length"])
    batch = {
        "input_word_ids": random.integers(1, size["words"], shape).astype(np.int32),
        "input_mask": np.ones(shape, np.int32),
        "input_type_ids": np.zeros(shape, np.int32),
    }
    labels = random.integers(0, 2, shape[0]).astype(np.int32)

    class Stream:
        """The same batch for ever."""

        def batch(self, step: int) -> Any:
            """That one."""
            return batch, labels

    def loss(logits: Any, labels: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    task = trellis.TrainTask(apply=apply, optimizer=optax.adamw(LEARNING_RATE), loss=loss, data=Stream())
    placement = trellis.runtime.Placement(jax.devices()[:1], exact=False)
    loop = trellis.TrainLoop(
        init=model.init if lora is None else lora.init,
        task=task,
        collections={"apply": ["dropout"]},
        n_steps_per_checkpoint=n_steps,
        n_steps=3 * n_steps,
        devices=placement,
        stdout=False,
        grads=False,
    )
    seconds, losses = [], []
    for checkpoint in loop:
        seconds.append((checkpoint.elapsed_time - checkpoint.compile_time) / checkpoint.n_completed_steps)
        losses.append(checkpoint.loss)
        state = (checkpoint.model_params, checkpoint.optimizer_state)
        n_trained = sum(leaf.size for leaf in jax.tree.leaves(checkpoint.model_params))
        n_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    peak = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    return {
        "seconds": statistics.median(seconds[1:]),
        "peak": peak,
        "trained": n_trained,
        "saved": n_bytes,
        "device": jax.devices()[0].device_kind,
        "losses": losses,
    }


def run_torch(size: dict[str, int], *, adapters: bool, dtype: str, n_steps: int) -> dict[str, Any]:
    """Steps of a loop in torch, the model of transformers, with sdpa and, on a GPU, a fused AdamW."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    config = transformers.BertConfig(
        vocab_size=size["words"],
        hidden_size=size["width"],
        num_hidden_layers=size["layers"],
        num_attention_heads=size["heads"],
        intermediate_size=size["inner"],
        hidden_dropout_prob=DROPOUT,
        attention_probs_dropout_prob=DROPOUT,
        attn_implementation="sdpa",
        num_labels=2,
    )
    model: Any = transformers.BertForSequenceClassification(config)
    if adapters:
        import peft

        settings = peft.LoraConfig(task_type="SEQ_CLS", r=RANK, lora_alpha=ALPHA, target_modules=TARGETS)
        model = peft.get_peft_model(model, settings)
    model = model.to(device).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, fused=device == "cuda")
    shape = (size["batch"], size["length"])
    batch = {
        "input_ids": torch.randint(1, size["words"], shape, device=device),
        "attention_mask": torch.ones(shape, dtype=torch.long, device=device),
        "token_type_ids": torch.zeros(shape, dtype=torch.long, device=device),
        "labels": torch.randint(0, 2, (shape[0],), device=device),
    }
    is_low = dtype == "bfloat16"

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    seconds, losses = [], []
    for _ in range(3):
        wait()
        started = time.perf_counter()
        for _ in range(n_steps):
            with torch.autocast(device, dtype=torch.bfloat16, enabled=is_low):
                loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        wait()
        seconds.append((time.perf_counter() - started) / n_steps)
        losses.append(float(loss))
    n_trained = sum(parameter.numel() for parameter in trained)
    return {
        "seconds": statistics.median(seconds[1:]),
        "peak": torch.cuda.max_memory_allocated() if device == "cuda" else None,
        "trained": n_trained,
        "saved": 3 * 4 * n_trained,
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "losses": losses,
    }


def run_case(name: str, flags: argparse.Namespace, size: str) -> dict[str, Any]:
    """A case in a process of its own."""
    command = [sys.executable, __file__, f"--case={name}", f"--size={size}", f"--dtype={flags.dtype}"]
    command += [f"--steps={flags.steps}", *([f"--peft-path={flags.peft_path}"] if flags.peft_path else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"case": name, "size": size, "error": (done.stderr.strip().splitlines() or ["no reason"])[-1]}
    return {"case": name, "size": size, **json.loads(done.stdout.strip().splitlines()[-1])}


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = ["| size | case | ms a step | peak MB | trained | of a checkpoint, MB |", "|---|---|---|---|---|---|"]
    for row in rows:
        if "error" in row:
            lines.append(f"| {row['size']} | {row['case']} | {row['error']} | | | |")
            continue
        numbers = (
            f"{1e3 * row['seconds']:.2f} | {row['peak'] / 1e6:,.0f} | {row['trained']:,} | {row['saved'] / 1e6:,.1f}"
        )
        lines.append(f"| {row['size']} | {row['case']} | {numbers} |")
    return "\n".join(lines)


def main() -> None:
    """Runs all cases, or one of them, which prints its numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("adapters"), help="where adapters.json and adapters.md go")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, few steps")
    parser.add_argument("--sizes", default="minilm,bert-base")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--steps", type=int, default=40, help="how many steps are timed together, thrice")
    parser.add_argument("--peft-path", default="", help="a directory with peft")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--size", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.peft_path:
        sys.path.insert(0, flags.peft_path)
    if flags.case:
        library, adapters = CASES[flags.case]
        run = {"trellis": run_trellis, "torch": run_torch}[library]
        result = run(SIZES[flags.size], adapters=adapters, dtype=flags.dtype, n_steps=flags.steps)
        result["peak"] = result["peak"] or 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(json.dumps(result))
        return
    if flags.quick:
        flags.sizes, flags.steps = "tiny", 5
    missing = {"torch": importlib.util.find_spec("torch") is None, "peft": importlib.util.find_spec("peft") is None}
    rows = []
    for size in flags.sizes.split(","):
        for case in CASES:
            lacking = [name for name in (["torch", "peft"] if "peft" in case else ["torch"]) if missing[name]]
            if CASES[case][0] == "torch" and lacking:
                rows.append({"size": size, "case": case, "error": f"no {', '.join(lacking)} here"})
                continue
            rows.append(run_case(case, flags, size))
            print(json.dumps(rows[-1]), flush=True)
    flags.out.mkdir(parents=True, exist_ok=True)
    (flags.out / "adapters.json").write_text(json.dumps({"dtype": flags.dtype, "rows": rows}, indent=1))
    (flags.out / "adapters.md").write_text(f"{table(rows)}\n")
    print(table(rows))


if __name__ == "__main__":
    main()
