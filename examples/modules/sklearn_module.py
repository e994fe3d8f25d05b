"""A `run_fn` with scikit-learn: no framework for training at all."""

import pickle
from pathlib import Path

from penguins import LABEL, as_arrays
from sklearn.linear_model import LogisticRegression

from trellis.executor import FnArgs, TensorFlowDatasetOptions


def run_fn(fn_args: FnArgs) -> None:
    """Fits a classifier to the whole split, scores it on the other, and pickles it."""
    model = LogisticRegression(max_iter=fn_args.train_steps or 300)
    model.fit(*everything(fn_args, fn_args.train_files, "train"))
    print(f"accuracy {model.score(*everything(fn_args, fn_args.eval_files, 'eval')):.3f}")
    Path(fn_args.serving_model_dir).mkdir()
    Path(fn_args.serving_model_dir, "model.pkl").write_bytes(pickle.dumps(model))


def everything(fn_args, files, split):
    """All inputs and labels of a split: one batch."""
    options = TensorFlowDatasetOptions(batch_size=fn_args.num_examples[split], label_key=LABEL)
    return as_arrays(next(fn_args.data_accessor.numpy_factory(files, options, fn_args.schema_path)))
