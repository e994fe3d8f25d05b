"""The manifests of the guide have the fields of their APIs, and say what Trellis reads; nothing is run."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from kubeflow_trainer_api import models
from pydantic import ValidationError

from tests.architecture.source import REPOSITORY
from trellis.cli import train
from trellis.cli.parser import Parser
from trellis.experiments import get_exp_config, get_mode

GUIDE = REPOSITORY / "docs/guides/run-on-kubernetes.md"
# What Trainer itself generates from the two APIs.
MODELS = {"TrainJob": models.TrainerV1alpha1TrainJob, "JobSet": models.JobsetV1alpha2JobSet}
# To the models these are any text; Kubernetes knows only some.
WORDS = {
    "action": {"FailJob", "FailIndex", "Ignore", "Count", "FailJobSet", "RestartJobSet"},
    "completionMode": {"Indexed", "NonIndexed"},
    "onJobFailureReasons": {"PodFailurePolicy", "BackoffLimitExceeded", "DeadlineExceeded"},
    "operator": {"In", "NotIn"},
    "restartPolicy": {"Never", "OnFailure"},
}


def leaves(value: Any, name: str = "", place: str = "") -> Iterator[tuple[str, str, Any]]:
    """Where each value is, the name of its field and what it is."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from leaves(part, key, f"{place}.{key}")
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from leaves(part, name, f"{place}[{number}]")
    else:
        yield place, name, value


def unknown_fields(manifest: Any) -> list[str]:
    """What the model of its API does not know, and drops; a type that is wrong, or a name that is missing, raises."""
    known = {place for place, _, _ in leaves(MODELS[manifest["kind"]].from_dict(manifest).to_dict())}
    return [place for place, _, _ in leaves(manifest) if place not in known]


def manifests() -> dict[str, Any]:
    """The manifests of the guide, by their kinds."""
    blocks = re.findall(r"^```yaml\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    return {manifest["kind"]: manifest for manifest in map(yaml.safe_load, blocks)}


@pytest.mark.parametrize("kind", MODELS)
def test_a_manifest_has_the_fields_of_its_api(kind: str) -> None:
    manifest = manifests()[kind]
    assert unknown_fields(manifest) == []
    assert [(place, value) for place, name, value in leaves(manifest) if value not in WORDS.get(name, {value})] == []


def test_a_field_that_is_wrong_is_found() -> None:
    manifest = manifests()["TrainJob"]
    trainer = manifest["spec"]["trainer"]
    trainer["nodes"] = 2
    assert unknown_fields(manifest) == [".spec.trainer.nodes"]
    trainer["numNodes"] = "2"
    with pytest.raises(ValidationError, match="numNodes"):
        unknown_fields(manifest)
    del trainer["numNodes"], manifest["spec"]["runtimeRef"]["name"]
    with pytest.raises(ValidationError, match="name"):
        unknown_fields(manifest)


def test_the_pods_of_a_job_set_know_who_they_are() -> None:
    manifest = manifests()["JobSet"]
    (job,) = manifest["spec"]["replicatedJobs"]
    (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
    values = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert values.keys() == {"JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_COORDINATOR_ADDRESS"}
    n_pods = job["template"]["spec"]["parallelism"]
    assert (job["template"]["spec"]["completions"], int(values["JAX_NUM_PROCESSES"])) == (n_pods, n_pods)
    # JobSet calls a pod <set>-<job>-<number of the job>-<number of the pod>.<subdomain>, by default that of the set.
    name = manifest["metadata"]["name"]
    port = container["ports"][0]["containerPort"]
    assert values["JAX_COORDINATOR_ADDRESS"] == f"{name}-{job['name']}-0-0.{name}:{port}"


def test_the_commands_are_those_of_one_machine() -> None:
    job = manifests()["TrainJob"]["spec"]["trainer"]
    (replicated,) = manifests()["JobSet"]["spec"]["replicatedJobs"]
    (container,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
    assert (job["command"], job["args"]) == (container["command"], container["args"])
    assert job["command"] == ["trellis", "train"]
    parser = Parser("train", "run")
    train.add_flags(parser)
    flags = parser.read(job["args"])
    assert get_exp_config(flags.experiment)
    assert get_mode(flags.mode).trains
