"""The manifests of the guide have the fields of their APIs, and say what Trellis reads; nothing is run."""

import re
from typing import Any

import pytest
import yaml

from tests.architecture.source import REPOSITORY
from trellis.cli import train
from trellis.cli.parser import Parser
from trellis.experiments import get_exp_config, get_mode

GUIDE = REPOSITORY / "docs/guides/run-on-kubernetes.md"
# The fields that the APIs have where the manifests use some: names and kinds as their documentation lists them.
Schema = Any
TEXTS: Schema = [str]
METADATA: Schema = {"name": str, "namespace": str, "labels": dict, "annotations": dict}
ENV: Schema = [{"name!": str, "value": str, "valueFrom": {"fieldRef": {"fieldPath!": str, "apiVersion": str}}}]
MOUNTS: Schema = [{"name!": str, "mountPath!": str, "readOnly": bool, "subPath": str}]
VOLUMES: Schema = [{"name!": str, "persistentVolumeClaim": {"claimName!": str, "readOnly": bool}}]
RESOURCES: Schema = {"limits": dict, "requests": dict}
CONTAINER: Schema = {
    "name!": str,
    "image": str,
    "command": TEXTS,
    "args": TEXTS,
    "env": ENV,
    "ports": [{"containerPort!": int, "name": str, "protocol": str}],
    "resources": RESOURCES,
    "volumeMounts": MOUNTS,
}
POD: Schema = {
    "restartPolicy": ("Never", "OnFailure"),
    "terminationGracePeriodSeconds": int,
    "volumes": VOLUMES,
    "containers!": [CONTAINER],
}
EXIT_CODES: Schema = {"containerName": str, "operator!": ("In", "NotIn"), "values!": [int]}
POD_FAILURE_RULE: Schema = {"action!": ("FailJob", "FailIndex", "Ignore", "Count"), "onExitCodes": EXIT_CODES}
JOB: Schema = {
    "parallelism": int,
    "completions": int,
    "completionMode": ("Indexed", "NonIndexed"),
    "backoffLimit": int,
    "podFailurePolicy": {"rules!": [POD_FAILURE_RULE]},
    "template!": {"metadata": METADATA, "spec": POD},
}
ACTIONS = ("FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts", "RestartJob")
RULE: Schema = {"name!": str, "action!": ACTIONS, "onJobFailureReasons": TEXTS, "targetReplicatedJobs": TEXTS}
JOB_SET: Schema = {
    "apiVersion!": ("jobset.x-k8s.io/v1alpha2",),
    "kind!": ("JobSet",),
    "metadata!": METADATA,
    "spec!": {
        "replicatedJobs": [{"name!": str, "replicas": int, "template!": {"metadata": METADATA, "spec": JOB}}],
        "network": {"enableDNSHostnames": bool, "subdomain": str, "publishNotReadyAddresses": bool},
        "failurePolicy": {"maxRestarts": int, "restartStrategy": str, "rules": [RULE]},
        "suspend": bool,
        "ttlSecondsAfterFinished": int,
    },
}
CONTAINER_PATCH: Schema = {"name!": str, "env": ENV, "volumeMounts": MOUNTS}
POD_PATCH: Schema = {"volumes": VOLUMES, "containers": [CONTAINER_PATCH], "nodeSelector": dict}
JOB_PATCH: Schema = {"name!": str, "template": {"spec": {"template": {"spec": POD_PATCH}}}}
TRAIN_JOB: Schema = {
    "apiVersion!": ("trainer.kubeflow.org/v1alpha1",),
    "kind!": ("TrainJob",),
    "metadata!": METADATA,
    "spec!": {
        "runtimeRef!": {"name!": str, "apiGroup": str, "kind": str},
        "trainer": {
            "image": str,
            "command": TEXTS,
            "args": TEXTS,
            "env": ENV,
            "numNodes": int,
            "resourcesPerNode": RESOURCES,
        },
        "runtimePatches": [
            {"manager!": str, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [JOB_PATCH]}}}}
        ],
        "suspend": bool,
    },
}


def problems(value: Any, schema: Schema, place: str = "") -> list[str]:
    """What is wrong with a value; a schema is a type, all values that there are, a list, or fields (! needed)."""
    if isinstance(schema, type):
        return [] if type(value) is schema else [f"{place}: {value!r} is no {schema.__name__}"]
    if isinstance(schema, tuple):
        return [] if value in schema else [f"{place}: {value!r} is none of {schema}"]
    if type(value) is not type(schema):
        return [f"{place}: {value!r} is no {type(schema).__name__}"]
    if isinstance(schema, list):
        return [text for number, item in enumerate(value) for text in problems(item, schema[0], f"{place}[{number}]")]
    fields = {name.rstrip("!"): field for name, field in schema.items()}
    found = [f"{place}: there is no field {name}" for name in value if name not in fields]
    found += [f"{place}: {name[:-1]} is missing" for name in schema if name[-1] == "!" and name[:-1] not in value]
    known = [name for name in value if name in fields]
    return found + [text for name in known for text in problems(value[name], fields[name], f"{place}.{name}")]


def manifests() -> dict[str, Any]:
    """The manifests of the guide, by their kinds."""
    blocks = re.findall(r"^```yaml\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    return {manifest["kind"]: manifest for manifest in map(yaml.safe_load, blocks)}


@pytest.mark.parametrize(("kind", "schema"), [("TrainJob", TRAIN_JOB), ("JobSet", JOB_SET)])
def test_a_manifest_has_the_fields_of_its_api(kind: str, schema: Schema) -> None:
    assert problems(manifests()[kind], schema) == []


def test_a_field_that_is_wrong_is_found() -> None:
    manifest = manifests()["TrainJob"]
    manifest["spec"]["trainer"] |= {"nodes": 2, "numNodes": "2"}
    del manifest["spec"]["runtimeRef"]["name"]
    assert problems(manifest, TRAIN_JOB) == [
        ".spec.runtimeRef: name is missing",
        ".spec.trainer: there is no field nodes",
        ".spec.trainer.numNodes: '2' is no int",
    ]


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
