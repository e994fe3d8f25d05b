"""Whether a step has room on the devices, known by compiling it for virtual ones; and what would make room."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from trellis.errors import TrellisError
from trellis.experiments.experiment import ExperimentConfig
from trellis.experiments.lengths import derive_lengths
from trellis.experiments.mode import get_mode
from trellis.experiments.preflight import Preflight
from trellis.experiments.reports import leaves_of
from trellis.experiments.run import build_task, build_trainer
from trellis.experiments.step_cost import Candidate, StepCost
from trellis.loops import batch_size
from trellis.runtime import count_sent_bytes

_REMAT = "use_gradient_checkpointing"
_PARTS = "trainer.n_microbatches"
_MESH = "runtime.mesh"

# XLA's compiler for CPUs takes away what keeps a layer that is computed again from being computed too early; those for
# accelerators do not. A version of XLA may not know this.
_OPTIONS: dict[str, str | bool] = {"xla_disable_hlo_passes": "cse_barrier_expander"}
# At the least each part's gradients and their sum; XLA has been seen to keep a third copy.
_LEAST_GRADIENTS_IN_PARTS, _GRADIENTS_IN_PARTS = 2, 3


def cost_of(params: ExperimentConfig, *, n_devices: int, model_dir: Path, memory: int | None = None) -> StepCost:
    """Compiles the training step of an experiment for virtual CPU devices; no array of the model is made.

    What is held between steps is exact, for any device. Temporaries are as XLA's compiler for CPUs counts them, which
    computes half precision in float32 and has no fused attention: an accelerator's is likely to need less.

    Args:
        memory: If what is held needs more than this, nothing is compiled.
    """
    params = params.replace(runtime={"num_gpus": n_devices})
    mode = get_mode("train")
    task, params = build_task(params, model_dir=None)
    params = derive_lengths(params, task=task, trains=True)
    trainer = build_trainer(params, mode=mode, model_dir=model_dir, task=task)
    outline = trainer.outline(trains=True, evaluates=False)
    assert outline.train is not None
    held = dict(Preflight(params=params, mode=mode, trainer=trainer, outline=outline).memory)
    gradients = held.pop("gradients")
    n_examples = batch_size(outline.train.batch) // outline.placement.n_parts
    flops = outline.train.flops / n_devices
    if memory is not None and sum(held.values()) + gradients > memory:
        return StepCost(held=held, gradients=gradients, temporaries=None, n_examples=n_examples, flops=flops, sent={})
    program = _compiled(trainer.lower())
    analysis: Any = program.memory_analysis()
    counted: Any = program.cost_analysis()
    return StepCost(
        held=held,
        gradients=gradients,
        temporaries=analysis.temp_size_in_bytes,
        n_examples=n_examples,
        # What devices compute more than once shows in the program, and what a loop repeats in the trace.
        flops=max(flops, counted.get("flops", 0.0)),
        sent=count_sent_bytes(program.as_text() or "", n_devices=n_devices),
    )


def _compiled(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    try:
        return lowered.compile(compiler_options=_OPTIONS)
    except jax.errors.JaxRuntimeError:
        return lowered.compile()


def search_fit(
    params: ExperimentConfig,
    *,
    n_devices: int,
    memory: int,
    model_dir: Path,
    when_known: Callable[[Candidate], object] = lambda candidate: None,
) -> list[Candidate]:
    """Compiles an experiment's step as it is and, if it has no room, with changes that need less, the cheapest first.

    Of a batch in parts the gradients are summed up over devices for each part; layers that are computed again cost a
    third more FLOPs; what is shared out (`fsdp`, then `model`) is sent. Each is tried by itself, then with the batch in
    parts, and only if nothing of this fits, all together.

    Args:
        when_known: Is called with each candidate as soon as its cost is known.
    """
    tried: list[Candidate] = []

    def attempt(settings: Mapping[str, Any]) -> Candidate:
        try:
            changed = _changed(params, settings)
            cost = cost_of(changed, n_devices=n_devices, model_dir=model_dir, memory=memory)
            candidate = Candidate(settings=settings, cost=cost)
        except TrellisError as error:
            if not settings:
                raise
            candidate = Candidate(settings=settings, cost=None, reason=str(error).partition("\n")[0])
        tried.append(candidate)
        when_known(candidate)
        return candidate

    def fits_in_parts(candidate: Candidate) -> bool:
        least = candidate.cost.total if candidate.cost else 0
        for settings in _in_parts(params, candidate, memory):
            parts = attempt(settings)
            # With as many parts as this there is nothing left that more of them would make smaller.
            if parts.fits(memory) or parts.cost is None or parts.cost.total >= least:
                return parts.fits(memory)
            least = parts.cost.total
        return False

    def fits(settings: Mapping[str, Any]) -> bool:
        """Whether it fits, as it is or in parts."""
        candidate = attempt(settings)
        return candidate.fits(memory) or fits_in_parts(candidate)

    first = attempt({})
    if first.fits(memory):
        return tried
    is_any = fits_in_parts(first)
    remat = _remat_settings(params)
    # What is held between steps is as large when layers are computed again.
    is_compiled = first.cost is not None and first.cost.temporaries is not None
    if remat and is_compiled:
        is_any = fits(remat) or is_any
    shared = _sharing(params, first, n_devices=n_devices, memory=memory)
    if shared:
        is_any = fits(shared) or is_any
    # Whatever is cheap by itself was not enough.
    most = _mesh_settings(params, fsdp=n_devices // max(1, params.runtime.mesh.model))
    if not is_any and most and most != shared:
        is_any = fits(most)
    if not is_any and most and remat:
        is_any = fits({**most, **remat})
    for size in (2, 4, 8):
        if not is_any and size > params.runtime.mesh.model and n_devices % size == 0:
            is_any = fits({**_mesh_settings(params, fsdp=n_devices // size, model=size), **remat})
    return tried


def _changed(params: ExperimentConfig, settings: Mapping[str, Any]) -> ExperimentConfig:
    changes: dict[str, Any] = {}
    for path, value in settings.items():
        *parents, name = path.split(".")
        branch = changes
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[name] = value
    return params.replace(**changes)


def _in_parts(params: ExperimentConfig, candidate: Candidate, memory: int) -> Iterator[Mapping[str, Any]]:
    """The candidate with its batch in parts: the fewest that may be enough, some more, and as many as there can be."""
    cost, n_now = candidate.cost, params.trainer.n_microbatches
    if cost is None or cost.temporaries is None:
        return
    room = memory - sum(cost.held.values()) - _GRADIENTS_IN_PARTS * cost.gradients
    if room < (_LEAST_GRADIENTS_IN_PARTS - _GRADIENTS_IN_PARTS) * cost.gradients:
        return
    kept = max(0, cost.temporaries - cost.gradients)
    n_least = n_now * kept / room if room > 0 else cost.n_examples
    divisors = [n for n in range(n_now + 1, cost.n_examples + 1) if cost.n_examples % n == 0]
    likely = [n for n in divisors if n >= n_least]
    for n in dict.fromkeys([*likely[:2], *divisors[-1:]]):
        yield {**candidate.settings, _PARTS: n}


def _sharing(params: ExperimentConfig, first: Candidate, *, n_devices: int, memory: int) -> dict[str, Any]:
    """The smallest `fsdp` that may be enough, else the greatest; empty if there is none above that of the config.

    Args:
        first: The config as it is.
    """
    cost, n_now = first.cost, params.runtime.mesh.fsdp
    assert cost is not None
    n_most = n_devices // max(1, params.runtime.mesh.model)
    sizes = [n for n in range(n_now + 1, n_most + 1) if n_most % n == 0 and n % n_now == 0]
    kept = max(0, (cost.temporaries or 0) - cost.gradients)
    # Parameters are whole while they are computed with.
    whole = cost.held["parameters"] * n_now
    likely = (n for n in sizes if (sum(cost.held.values()) + cost.gradients) * n_now / n + whole + kept <= memory)
    size = next(likely, sizes[-1] if sizes else n_now)
    return _mesh_settings(params, fsdp=size)


def _remat_settings(params: ExperimentConfig) -> dict[str, Any]:
    """What has the layers of the model computed again; empty if it has no such switch, or that is on."""
    # A task may fill in which model it is, of several kinds; who sets a switch of one kind has to choose it.
    given = leaves_of(params.task)
    filled = leaves_of(build_task(params, model_dir=None)[1].task)
    settings: dict[str, Any] = {}
    for path, (value, _) in filled.items():
        if path.endswith(_REMAT) and value is False:
            kind = ".".join([*path.split(".")[:-2], "type"])
            is_open = kind in filled and kind in given and given[kind][0] is None
            settings |= {f"task.{kind}": filled[kind][0]} if is_open else {}
            settings[f"task.{path}"] = True
    return settings


def _mesh_settings(params: ExperimentConfig, **sizes: int) -> dict[str, Any]:
    """The settings of an arrangement; empty if it is the one that the config has."""
    mesh = params.runtime.mesh
    settings = {} if mesh.data == -1 else {f"{_MESH}.data": -1}
    changed = {f"{_MESH}.{axis}": size for axis, size in sizes.items() if getattr(mesh, axis) != size}
    return settings | changed if changed else {}
