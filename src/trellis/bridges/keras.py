"""Keras 3 models in a loop, on Keras's JAX backend."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from flax.core.scope import in_filter
from flax.errors import InvalidRngError
from flax.traverse_util import flatten_dict, unflatten_dict

from trellis.aliases import Key, Variables
from trellis.errors import ArgumentError, MissingPackageError, shown

try:
    # Its default backend is TensorFlow, without which it could not be imported.
    os.environ.setdefault("KERAS_BACKEND", "jax")
    import keras
except ImportError as error:
    raise MissingPackageError("keras", "keras") from error

_NO_KEYS: Mapping[str, Key] = {}
_SEED = "seed_generator_state"


class KerasModel:
    """A Keras model as `init` and `apply`, to be used as those of a linen module.

    Trainable weights are in the collection `params`, all others (such as the statistics of a batch normalisation) in
    `state`, under the names of their layers. A Keras model comes with its weights: `init` returns these, whatever the
    key is. Random layers draw from the key `dropout`, so that in a loop they are a function of the root key and the
    step. The losses that layers add are in the collection `losses`, which a `Task` adds to its loss.

    Example:
        model = KerasModel(keras.Sequential([keras.Input([64]), keras.layers.Dense(10)]))
        loop = TrainLoop(
            init=model.init,
            task=TrainTask(apply=model.apply, optimizer=optax.adam(1e-3), loss=cross_entropy, data=stream),
            collections={"apply": ["dropout"]},
        )
        evaluate = EvalLoop(task=EvalTask(apply=model.eval_apply, metrics={"accuracy": accuracy}, data=held_out))

    Args:
        model: One that is built: its layers know the shapes of their inputs.
    """

    def __init__(self, model: keras.Model) -> None:
        if not isinstance(model, keras.Model):
            raise ArgumentError(f"{shown(model)} is no keras.Model. Give one, such as keras.Sequential([...]).")
        if keras.backend.backend() != "jax":
            raise ArgumentError(
                f"Keras runs on {keras.backend.backend()}, but a loop needs JAX. Set the variable KERAS_BACKEND to jax "
                f"before Keras is imported."
            )
        if not model.built:
            raise ArgumentError(
                f"The model {model.name!r} has no weights yet. Begin it with keras.Input(shape), or call it on a batch."
            )
        self._model = model
        self._trained = _paths(model, model.trainable_variables)
        self._others = _paths(model, model.non_trainable_variables)

    def init(self, rngs: Mapping[str, Key], *inputs: Any) -> Variables:
        """The weights of the model, whatever the keys and the inputs are."""
        if len(self._model.trainable_variables) != len(self._trained):
            raise ArgumentError(
                f"The model {self._model.name!r} has other trainable weights than it had when its KerasModel was made. "
                f"Set `trainable` first, and make KerasModel(model) after it."
            )
        params = [jax.numpy.copy(weight.value) for weight in self._model.trainable_variables]
        others = [jax.numpy.copy(weight.value) for weight in self._model.non_trainable_variables]
        return {"params": unflatten_dict(dict(zip(self._trained, params, strict=True))), **self._state(others)}

    def apply(
        self, variables: Variables, *inputs: Any, rngs: Mapping[str, Key] = _NO_KEYS, mutable: Any = False
    ) -> Any:
        """The outputs in training mode; with `mutable` a pair of them and the changed collections."""
        if "dropout" not in rngs and any(path[-1] == _SEED for path in self._others):
            raise InvalidRngError(f'{self._model.name} needs PRNG for "dropout"')
        return self._run(variables, inputs, rngs, mutable, training=True)

    def eval_apply(
        self, variables: Variables, *inputs: Any, rngs: Mapping[str, Key] = _NO_KEYS, mutable: Any = False
    ) -> Any:
        """The outputs in evaluation mode; otherwise as `apply`."""
        return self._run(variables, inputs, rngs, mutable, training=False)

    def bind(self, variables: Variables) -> keras.Model:
        """The Keras model itself, with these weights in the place of its own: to be saved, or called.

        Example:
            model.bind(checkpoint.variables).save("model.keras")
        """
        if not isinstance(variables, Mapping):
            raise ArgumentError(
                f"bind was given a {type(variables).__name__}. Give the collections of variables: checkpoint.variables"
            )
        params, state = _flat(variables, "params"), _flat(variables, "state")
        lacking = sorted(
            "/".join(path)
            for path in (set(self._trained) - params.keys()) | (set(self._others) - state.keys())
            if path[-1] != _SEED
        )
        if lacking:
            raise ArgumentError(
                f"The variables given to bind lack {', '.join(lacking)} of the model {self._model.name!r}. "
                f"Give all of a checkpoint: checkpoint.variables"
            )
        for paths, weights, values in (
            (self._trained, self._model.trainable_variables, params),
            (self._others, self._model.non_trainable_variables, state),
        ):
            for path, weight in zip(paths, weights, strict=True):
                if path[-1] != _SEED:
                    # A copy: a loop gives the arrays of its checkpoints away, and so does Keras.
                    weight.assign(jax.numpy.copy(values[path]))
        return self._model

    def _run(
        self, variables: Variables, inputs: tuple[Any, ...], rngs: Mapping[str, Key], mutable: Any, *, training: bool
    ) -> Any:
        params, state = _flat(variables, "params"), _flat(variables, "state")
        # A functional model takes several inputs as a list.
        is_listed = len(inputs) > 1 and len(getattr(self._model, "inputs", None) or ()) == len(inputs)
        # Keras's own layers add a bias of another rank.
        with jax.numpy_rank_promotion("allow"):
            outputs, others, losses = self._model.stateless_call(
                [params[path] for path in self._trained],
                [_seed(rngs, index) if path[-1] == _SEED else state[path] for index, path in enumerate(self._others)],
                *([list(inputs)] if is_listed else inputs),
                training=training,
                return_losses=True,
            )
        if mutable is False:
            return outputs
        updates = {**self._state(others), "losses": {"keras": tuple(losses)}}
        return outputs, {name: part for name, part in updates.items() if in_filter(mutable, name)}

    def _state(self, values: Sequence[Any]) -> dict[str, Any]:
        """The collection `state` of all that is not trained; none if there is nothing but seeds."""
        state = {path: value for path, value in zip(self._others, values, strict=True) if path[-1] != _SEED}
        return {"state": unflatten_dict(state)} if state else {}


def _paths(model: keras.Model, weights: Sequence[Any]) -> list[tuple[str, ...]]:
    """The names of weights, without the model's name, which depends on how many models there were before."""
    paths = [tuple(weight.path.removeprefix(f"{model.name}/").split("/")) for weight in weights]
    repeated = sorted({"/".join(path) for path in paths if path[-1] != _SEED and paths.count(path) > 1})
    if repeated:
        names = ", ".join(repeated)
        raise ArgumentError(f"The model {model.name!r} has several weights called {names}. Name its layers.")
    return paths


def _flat(variables: Variables, name: str) -> dict[tuple[str, ...], Any]:
    return dict(flatten_dict(dict(variables.get(name, {}))))


def _seed(rngs: Mapping[str, Key], index: int) -> Any:
    """The state of a layer's seed: it follows from the step's key and the layer's number."""
    key = jax.random.fold_in(rngs.get("dropout", jax.random.key(0)), index)
    return jax.random.bits(key, (2,), "uint32")
