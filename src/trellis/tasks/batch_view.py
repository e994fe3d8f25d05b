"""A batch as it is shown to people."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trellis.aliases import JSON, Batch, PyTree


@dataclass(frozen=True, kw_only=True)
class BatchView:
    """What `trellis data show` shows of a batch of a task; all arrays are NumPy's, with the batch as first axis."""

    inputs: PyTree
    """What two examples have in common that are the same; two of one input with two labels are, too."""
    labels: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Those that are one number for an example, by name."""
    several_labels: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Those of which an example has any number, by name: the labels of all examples in one row."""
    label_names: Sequence[str] = ()
    """What labels are called that are numbers of classes, in their order."""
    lengths: NDArray[np.integer] | None = None
    """How much of each row is no padding; None if rows have no length."""
    row_length: int = 0
    describe: Callable[[int], Mapping[str, JSON | NDArray[Any]]] = lambda row: {}
    """What is shown of one example, by name; nothing has its arrays shown as they are."""

    def label_text(self, value: float) -> str:
        """A label with its name, if it has one."""
        is_named = float(value).is_integer() and 0 <= value < len(self.label_names)
        name = self.label_names[int(value)] if is_named else ""
        return f"{name} ({value:g})" if name not in ("", f"{value:g}") else f"{value:g}"


def view_of_sides(inputs: Batch, labels: Any) -> BatchView:
    """The view of a batch whose labels are apart from its inputs, or in it under names that end so."""
    if labels is inputs:
        named = labels if isinstance(labels, Mapping) else {}
        found: Mapping[str, Any] = {
            name: values for name, values in named.items() if name.split("_")[-1] in ("label", "labels")
        }
        inputs = {name: values for name, values in named.items() if name not in found} if found else inputs
    else:
        several = {f"label {place}": part for place, part in enumerate(labels)} if isinstance(labels, tuple) else {}
        found = labels if isinstance(labels, Mapping) else several or {"label": labels}
    arrays = {name: np.asarray(values) for name, values in found.items()}
    flat = {name: values.reshape(len(values)) for name, values in arrays.items() if values.size == len(values) > 0}
    return BatchView(inputs=inputs, labels=flat)
