"""A model that goes on with text."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from trellis.aliases import Apply, Variables
from trellis.errors import ArgumentError, CheckpointFileError
from trellis.experiments import ExperimentConfig, best_of_run, find_checkpoint, read_params
from trellis.extensions import newest_file
from trellis.nlp.answers.answerers import Prediction, quoted
from trellis.nlp.answers.asked_file import Asked
from trellis.nlp.answers.predictor import read_model
from trellis.nlp.data import ReversibleTokenizer, in_blocks, is_unicode
from trellis.runtime import fetch
from trellis.tasks import get_task

_MOST_ROWS = 16
_SHORTEST_PROMPT = 8


@dataclass(frozen=True)
class GenerationOptions:
    """How text is gone on with."""

    n_tokens: int = 100
    """How many tokens are added at most; an end token ends the text before."""
    temperature: float = 0.8
    """0 always takes the most probable token; 1 draws as the model says, less keeps to what is probable."""
    top_k: int | None = None
    """Draws from so many of the most probable tokens alone; None is all."""
    seed: int = 0
    """Of what is drawn: the same seed, the same text."""

    def __post_init__(self) -> None:
        if self.n_tokens < 1:
            raise ArgumentError(f"n_tokens is {self.n_tokens}, but at least 1 token is added.")
        if not 0 <= self.temperature < float("inf"):
            raise ArgumentError(f"temperature is {self.temperature}, but it is 0 or more; 0.8 is usual.")
        if self.top_k is not None and self.top_k < 1:
            raise ArgumentError(f"top_k is {self.top_k}, but at least 1 token can be drawn. Leave it out for all.")
        if not 0 <= self.seed < 1 << 63:
            raise ArgumentError(f"seed is {self.seed}, but it is from 0 to {(1 << 63) - 1}.")


@runtime_checkable
class WritingTask(Protocol):
    """A task whose model goes on with text."""

    @property
    def tokenizer(self) -> ReversibleTokenizer:
        """What turns text into ids and back."""

    @property
    def context(self) -> int:
        """How many tokens the model sees at most."""

    def build_model(self) -> Any:
        """The model, which has a method `generate`."""


class Generator:
    """Goes on with prompts: each batch of them is one compiled program with a cache of fixed size.

    The model sees its context at most: what is longer is forgotten but for the last half of that. What a prompt is
    continued with follows from the model, the seed and the number of the prompt, not from the others.

    Args:
        apply: Runs a method of the model by name, in the precision of the run.
    """

    def __init__(self, apply: Apply, *, tokenizer: ReversibleTokenizer, context: int) -> None:
        if context < 2:
            raise ArgumentError(f"The model sees {context} token (max_position_embeddings), but to write takes 2.")
        self.tokenizer = tokenizer
        self._context = context
        self._run: Any = jax.jit(_method(apply), static_argnames=("n_tokens", "top_k"))

    def __call__(
        self, prompts: Sequence[str], *, variables: Variables, options: GenerationOptions, first_number: int = 0
    ) -> Iterator[str]:
        """Yields what comes after each prompt, without the prompt.

        Args:
            first_number: The number of the first prompt.
        """
        for start in range(0, len(prompts), _MOST_ROWS):
            seen = [self._seen(prompt, options.n_tokens) for prompt in prompts[start : start + _MOST_ROWS]]
            rooms = [_room(len(ids), most=self._context - 1) for ids in seen]
            written: dict[int, NDArray[np.int32]] = {}
            # Rows of one length alone share a batch, so that what one of them sees does not depend on the others.
            for room in sorted(set(rooms)):
                rows = [row for row, other in enumerate(rooms) if other == room]
                numbers = first_number + start + np.array(rows)
                new = self._continued([seen[row] for row in rows], room, numbers, variables, options)
                written |= dict(zip(rows, new, strict=True))
            for row in range(len(seen)):
                ends = np.flatnonzero(written[row] == self.tokenizer.end_id)
                yield self.tokenizer.decode(written[row][: ends[0]] if len(ends) else written[row])

    def _seen(self, prompt: str, n_tokens: int) -> NDArray[np.int32]:
        """What the model sees of a prompt."""
        ids = self._ids(prompt)
        return ids if len(ids) + n_tokens <= self._context else ids[-max(1, self._context // 2) :]

    def _ids(self, prompt: str) -> NDArray[np.int32]:
        ids = self.tokenizer.encode([prompt]).values
        # Nothing is what a document begins after.
        return ids if len(ids) else np.array([self.tokenizer.end_id], np.int32)

    def _continued(
        self,
        rows: Sequence[NDArray[np.int32]],
        room: int,
        numbers: NDArray[np.int64],
        variables: Variables,
        options: GenerationOptions,
    ) -> NDArray[np.int32]:
        """The new ids of rows that are filled up to one length, in as few rounds as can be."""
        root = jax.random.key(options.seed)
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(root, jnp.asarray(numbers, jnp.uint32))
        written: list[NDArray[np.int32]] = []
        n_new = 0
        while n_new < options.n_tokens:
            n_padding = np.array([room - len(row) for row in rows], np.int32)
            ids = np.stack([np.pad(row, (room - len(row), 0)) for row in rows]).astype(np.int32)
            new = fetch(
                self._run(
                    variables,
                    ids,
                    n_padding,
                    keys,
                    n_tokens=min(options.n_tokens - n_new, self._context - room),
                    first=np.int32(n_new),
                    temperature=np.float32(options.temperature),
                    top_k=options.top_k,
                )
            )
            written.append(new)
            n_new += new.shape[1]
            room = max(1, self._context // 2)
            rows = [np.concatenate([row, added])[-room:] for row, added in zip(rows, new, strict=True)]
        return np.concatenate(written, axis=1)


def _method(apply: Apply) -> Callable[..., Any]:
    def generate(variables: Variables, *inputs: Any, **options: Any) -> Any:
        return apply(variables, *inputs, method="generate", **options)

    return generate


def _room(n: int, *, most: int) -> int:
    """The length that prompts are filled up to: a power of two if that fits, so that few programs are compiled."""
    power = max(_SHORTEST_PROMPT, 1 << (n - 1).bit_length())
    return power if power <= most // 2 else n


class TextWriter:
    """A trained model that goes on with text.

    Example:
        writer = load_writer("runs/gpt")
        for prediction in writer(["Return the", "Raise a"], options=GenerationOptions(n_tokens=50)):
            print(prediction.text)
    """

    def __init__(self, generator: Generator, *, variables: Variables) -> None:
        self._generator = generator
        self._variables = variables

    def __call__(self, prompts: Sequence[str], *, options: GenerationOptions) -> Iterator[Prediction]:
        """Yields each prompt with what comes after it."""
        asked = (Asked((prompt,), f"prompt {number}") for number, prompt in enumerate(prompts, start=1))
        return self.answers(asked, options=options)

    def answers(
        self, asked: Iterable[Asked], *, options: GenerationOptions, block_size: int = _MOST_ROWS
    ) -> Iterator[Prediction]:
        """Yields each prompt with what comes after it, or what is wrong with it.

        Args:
            block_size: How many prompts are read before the first of them is gone on with.
        """
        n_before = 0
        for block in in_blocks(asked, block_size):
            problems = [_problem(one) for one in block]
            prompts = [one.parts[0] for one, problem in zip(block, problems, strict=True) if not problem]
            texts = iter(
                list(self._generator(prompts, variables=self._variables, options=options, first_number=n_before))
            )
            n_before += len(prompts)
            for one, problem in zip(block, problems, strict=True):
                known_by = {} if one.id is None else {"id": one.id}
                if problem:
                    yield Prediction(problem, {**known_by, "error": problem}, problem)
                else:
                    text = next(texts)
                    yield Prediction(
                        shown_text(one.parts[0] + text), {**known_by, "text": one.parts[0], "continuation": text}
                    )


def shown_text(text: str) -> str:
    """A text for a screen, which letters that steer it do not reach: they are shown as U+FFFD."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in text)


def _problem(asked: Asked) -> str:
    if asked.problem:
        return asked.problem
    if len(asked.parts) != 1:
        return f"{asked.place}: it has {len(asked.parts)} parts, but a prompt is one text."
    if not is_unicode(asked.parts[0]):
        return f"{asked.place}: {quoted(asked.parts[0])} has half a character. Give it in UTF-8."
    return ""


def load_writer(model_dir: str, *, params: ExperimentConfig | None = None, checkpoint: str | None = None) -> TextWriter:
    """Returns what goes on with text by the model of a run: its best if it kept one, else its newest.

    Args:
        params: The config of the run; the default is the one that it was trained with.
        checkpoint: `best`, a step, or a checkpoint file of the run.
    """
    params = params or read_params(model_dir)
    task = get_task(params.task, logging_dir=model_dir)
    if not isinstance(task, WritingTask):
        raise ArgumentError(f"`{model_dir}` holds a {type(task).__name__}, whose model does not go on with text.")
    if checkpoint is None:
        file = best_of_run(params, Path(model_dir)) or newest_file(Path(model_dir))
    else:
        file = find_checkpoint(checkpoint, params=params, model_dir=Path(model_dir))
    if file is None:
        raise CheckpointFileError(f"There is no checkpoint file in `{model_dir}`. Train first: trellis train.")
    model = read_model(task, file, runtime=params.runtime, adapters=params.trainer.lora)
    generator = Generator(model.apply, tokenizer=task.tokenizer, context=task.context)
    return TextWriter(generator, variables=model.variables)
