"""The manifest as JobSet's published types have it, and what it and the entry point agree on."""

from typing import Any

import pytest
import yaml
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet

from toolkit.errors import (
    HangError,
    NonFiniteError,
    OutOfMemoryError,
    Preempted,
    UntrustedError,
    UsageError,
)
from toolkit.launch.launcher import ENVIRONMENT
from toolkit.shipped import ROOT

MANIFEST = ROOT / "launch" / "kubernetes" / "jobset.yaml"


def read() -> Any:
    return yaml.safe_load(MANIFEST.read_text())


@pytest.fixture
def spec() -> Any:
    return read()["spec"]


@pytest.fixture
def job(spec: Any) -> Any:
    [machine] = spec["replicatedJobs"]
    return machine["template"]["spec"]


@pytest.fixture
def container(job: Any) -> Any:
    [train] = job["template"]["spec"]["containers"]
    return train


def known(manifest: Any) -> Any:
    """What is left of a manifest that is read as JobSet and Kubernetes type it."""
    found = JobsetV1alpha2JobSet.from_dict(manifest)
    assert found is not None
    return found.to_dict()


def test_every_key_is_one_of_the_published_types() -> None:
    assert known(read()) == read()


@pytest.mark.parametrize("key", ["completion", "ttlSeconds"])
def test_a_misspelt_key_is_found(key: str) -> None:
    manifest = read()
    manifest["spec"]["replicatedJobs"][0]["template"]["spec"][key] = 2
    assert known(manifest) != manifest


def test_a_value_of_another_type_is_found() -> None:
    manifest = read()
    manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["completions"] = "two"
    with pytest.raises(ValueError, match="completions"):
        known(manifest)


def test_the_number_of_machines_is_the_same_everywhere(job: Any, container: Any) -> None:
    values = {variable["name"]: variable["value"] for variable in container["env"]}
    assert job["completionMode"] == "Indexed"
    assert job["parallelism"] == job["completions"] == int(values["NODES"])
    assert container["resources"]["limits"]["nvidia.com/gpu"] == int(values["PROCESSES_PER_NODE"])


def test_the_address_is_the_name_that_jobset_gives_pod_0(spec: Any, container: Any) -> None:
    """<jobSet.name>-<replicatedJob.name>-<job-index>-<pod-index>.<subdomain>, by its API."""
    network = spec["network"]
    [address] = [v["value"] for v in container["env"] if v["name"] == "MAIN_ADDRESS"]
    job_name = spec["replicatedJobs"][0]["name"]
    assert address == f"{read()['metadata']['name']}-{job_name}-0-0.{network['subdomain']}"
    assert network["enableDNSHostnames"]


def test_a_pod_has_longer_to_end_than_the_workers_to_save(job: Any) -> None:
    seconds = job["template"]["spec"]["terminationGracePeriodSeconds"]
    assert seconds > int(ENVIRONMENT["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"])


def test_what_a_new_start_cannot_mend_is_not_repeated(spec: Any, job: Any) -> None:
    [rule] = job["podFailurePolicy"]["rules"]
    lasting = {UsageError, UntrustedError, OutOfMemoryError, NonFiniteError}
    assert set(rule["onExitCodes"]["values"]) == {error.exit_code for error in lasting}
    assert not {HangError.exit_code, Preempted.exit_code} & set(rule["onExitCodes"]["values"])
    assert rule["onExitCodes"]["containerName"] == "train"
    # Pod failure policies need both.
    assert job["template"]["spec"]["restartPolicy"] == "Never"
    [failing] = spec["failurePolicy"]["rules"]
    assert (failing["action"], failing["onJobFailureReasons"]) == (
        "FailJobSet",
        ["PodFailurePolicy"],
    )


def test_it_runs_as_the_account_of_the_container_file(job: Any, container: Any) -> None:
    text = (ROOT / "launch" / "Containerfile").read_text()
    pod = job["template"]["spec"]["securityContext"]
    assert pod["runAsNonRoot"]
    assert f"useradd --uid {pod['runAsUser']} " in text
    assert f"USER {pod['runAsUser']}:{pod['runAsGroup']}\n" in text
    assert not container["securityContext"]["allowPrivilegeEscalation"]
