"""`trellis export`: the model of a run, to be served or to be loaded by others."""

import argparse
import shlex
from collections.abc import Iterator
from pathlib import Path

from trellis import bridges, experiments, serving
from trellis.cli.experiments import add_experiment_flags, resolve_flags
from trellis.cli.parser import Parser
from trellis.disk import scheme_of
from trellis.errors import ArgumentError
from trellis.remote import new_directory, working_directory
from trellis.runtime import print_json, print_line

_HUGGING_FACE = "hugging_face"
_PEFT = "peft"
_FORMATS = (*serving.FORMATS, _HUGGING_FACE, _PEFT)
_EPILOG = """\
What is written answers without the code of the model:

  model = trellis.load_model("served/digits")
  outputs = model(inputs)

The config is that of the run, from its params.yaml, unless --config_file names another.

  trellis export --experiment=digits/classifier --model_dir=runs/digits --output_dir=served/digits

The format hugging_face is a directory that transformers loads, with the heads, the names of the labels and the
tokenizer, for encoders of text that it has too, such as BERT, DistilBERT and RoBERTa:

  trellis export --format=hugging_face --model_dir=runs/mrpc --output_dir=weights/mrpc

Adapters that were trained (trainer.lora) are merged into the weights; the format peft writes them alone:

  trellis export --format=peft --model_dir=runs/mrpc --output_dir=adapters/mrpc

JAX promises to read what a JAX of half a year before has exported. What was exported is made new by the JAX that is
here, from what lies beside it, if it then answers as it did; else it is left as it is:

  trellis export --refresh=served/digits
"""


def add_flags(parser: Parser) -> None:
    """Adds the flags that say what to export, and where to."""
    parser.epilog = _EPILOG
    parser.add_flag("model_dir", "DIR", "where the run was written", address="kept", default="")
    where = "where to write the served model: a directory that is not there yet, or empty"
    parser.add_flag("output_dir", "DIR", where, address="kept", default="")
    parser.add_flag("refresh", "DIR", "an exported model to make new; no other flag but --module goes with it")
    which = "a checkpoint file of the run; the default is the best one if it keeps that, or else the newest"
    parser.add_flag("checkpoint_file", "DIR", which, address="fetched")
    size = "the size of the batches that it takes; the default is any"
    parser.add_flag("batch_size", "N", size, type=int)
    platforms = "what to export for, such as cpu,cuda; the default is cpu,cuda,tpu, or this machine's if that fails"
    parser.add_flag("platforms", "NAMES", platforms, default="")
    format = "jax_export, for Trellis, is the default; or saved_model (TensorFlow), hugging_face (transformers), peft"
    parser.add_flag("format", "NAME", format, default="jax_export")
    parser.add_json_flag()
    add_experiment_flags(parser)


def export(flags: argparse.Namespace) -> None:
    """Exports a run's model, or makes one new that was exported; prints what was written and how to use it."""
    if flags.refresh is not None:
        _refresh(flags)
        return
    missing = [f"--{name}" for name in ("model_dir", "output_dir") if not getattr(flags, name)]
    if missing:
        raise ArgumentError(f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} missing.\n{flags.way_out}")
    run = working_directory(flags.model_dir, name="--model_dir", writes=False)
    new = new_directory(flags.output_dir, name="--output_dir")
    with run as directory, new as output_dir:
        written = _export(flags, directory, output_dir)
        if flags.json:
            answer = {"format": flags.format, "output_dir": flags.output_dir, **_description(flags, written)}
        else:
            lines = list(
                {"saved_model": _saved_model, _HUGGING_FACE: _weights, _PEFT: _adapters}.get(
                    flags.format, _served_model
                )(written)
            )
    if flags.json:
        print_json(answer)
        return
    if scheme_of(flags.output_dir):
        lines = [line.replace(str(output_dir), flags.output_dir.rstrip("/")) for line in lines]
    print_line("\n".join(lines))


def _refresh(flags: argparse.Namespace) -> None:
    names = ("model_dir", "output_dir", "checkpoint_file", "batch_size", "platforms", "experiment", "config_file")
    given = [f"--{name}" for name in (*names, "params_override", "set") if getattr(flags, name)]
    if given:
        raise ArgumentError(
            f"--refresh takes all from what lies beside the model, so {', '.join(given)} has no place there. Leave it "
            f"out, or export the model of the run anew without --refresh."
        )
    experiments.register_experiments(flags.module)
    done = experiments.refresh_export(flags.refresh)
    if flags.json:
        print_json(
            {
                "directory": str(done.directory),
                "before": serving.written_line(done.before),
                "now": serving.written_line(done.after),
                "n_answers": done.n_answers,
                "tolerance": done.tolerance,
                "dtype": str(done.dtype),
            }
        )
        return
    arrays = "1 array" if done.n_answers == 1 else f"{done.n_answers} arrays"
    print_line(f"Refreshed:   {done.directory}")
    print_line(f"Before:      {serving.written_line(done.before)}")
    print_line(f"Now:         {serving.written_line(done.after)}")
    print_line(f"The same:    {arrays} of answers, to {done.tolerance:g} of the greatest ({done.dtype})")


def _export(flags: argparse.Namespace, directory: Path, output_dir: Path) -> Path:
    """Exports the model of a run in a directory; returns where it is."""
    own = directory / "params.yaml"
    if not directory.is_dir():
        raise ArgumentError(f"--model_dir: there is no directory `{directory}`. Give that of a run.")
    if flags.format not in _FORMATS:
        raise ArgumentError(f"There is no format {flags.format!r}. There are: {', '.join(_FORMATS)}.")
    if flags.format in serving.FORMATS:
        serving.check_format(flags.format)
    if flags.batch_size is not None and flags.batch_size < 1:
        raise ArgumentError(f"--batch_size is {flags.batch_size}, but a batch has at least one example.")
    if not flags.config_file and own.is_file():
        flags.config_file = [str(own)]
    elif not flags.config_file and not flags.experiment:
        raise ArgumentError(
            f"--model_dir: `{directory}` has no params.yaml, so it is not of a run. Give the directory of one."
        )
    params = resolve_flags(flags, mode="eval")
    # This loads JAX, when all that can be known without it is known to be right.
    return experiments.export_experiment(
        params,
        model_dir=directory,
        output_dir=output_dir,
        checkpoint_file=flags.checkpoint_file,
        batch_size=flags.batch_size,
        platforms=[name for name in flags.platforms.split(",") if name] or None,
        format=flags.format,
    )


def _description(flags: argparse.Namespace, output_dir: Path) -> dict[str, object]:
    """What a manifest says of the model, if it has one."""
    if flags.format != "jax_export":
        return {"files": sorted(file.name for file in output_dir.iterdir())}
    manifest = serving.read_manifest(output_dir)
    return {
        "step": manifest.metadata["step"],
        "platforms": list(manifest.platforms),
        "signatures": list(serving.load_model(output_dir).signatures),
    }


def _saved_model(output_dir: Path) -> Iterator[str]:
    yield f"Written to:  {output_dir}"
    yield f'To use it:   model = tf.saved_model.load("{output_dir}")'
    yield "             model.signatures has serving_default, of serialized examples, and the functions, of arrays"


def _weights(output_dir: Path) -> Iterator[str]:
    architecture = bridges.read_hugging_face_settings(output_dir).architecture
    yield f"Written to:  {output_dir} ({architecture}: {', '.join(sorted(file.name for file in output_dir.iterdir()))})"
    yield f'To use it:   model = transformers.{architecture}.from_pretrained("{output_dir}")'
    yield f"To ask it:   trellis predict --model_dir={shlex.quote(str(output_dir))}"


def _adapters(output_dir: Path) -> Iterator[str]:
    yield f"Written to:  {output_dir} ({', '.join(sorted(file.name for file in output_dir.iterdir()))})"
    yield f'To use them: model = peft.PeftModel.from_pretrained(model, "{output_dir}")'
    yield f"To go on:    trellis train … --set=trainer.lora.init_adapter={shlex.quote(str(output_dir))}"


def _served_model(output_dir: Path) -> Iterator[str]:
    model = serving.load_model(output_dir)
    yield f"Step {model.manifest.metadata['step']}, for {', '.join(model.manifest.platforms)}:"
    yield from (f"  {signature!r}" for signature in model.signatures.values())
    yield f"Written to:  {output_dir}"
    yield f'To use it:   model = trellis.load_model("{output_dir}")'
    if "text" not in model.manifest.metadata:
        yield f"To ask it:   trellis predict --model_dir={shlex.quote(str(output_dir))} --input_file=FILE"
    else:
        unknown = "" if model.files else " --vocab_file=FILE  (its data came as ids, so it knows no vocabulary)"
        yield f"To ask it:   trellis predict --model_dir={shlex.quote(str(output_dir))}{unknown}"
