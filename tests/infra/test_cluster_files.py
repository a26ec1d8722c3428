"""The cluster as files: images, compose, Ray, Kubernetes and work pools, by the schemas and linters of their makers."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import ray
import yaml
from prefect.utilities.templating import apply_values
from prefect_docker.worker import DockerWorkerJobConfiguration
from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration
from ray.scripts.scripts import start as ray_start
from ray.serve.schema import ServeDeploySchema

from schemas.load import load_config

ROOT = Path(__file__).resolve().parents[2]
INFRA = ROOT / "infra"
BIN = Path(sys.executable).parent
KUBERNETES = "1.37"
RAY_OPTIONS = {option for parameter in ray_start.params for option in parameter.opts}


def documents(name: str) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all((INFRA / name).read_text()) if one]


def compose() -> dict[str, Any]:
    [found] = documents("compose/compose.yaml")
    return found


def ray_clusters() -> Iterator[dict[str, Any]]:
    [cluster] = documents("kubernetes/ray-cluster.yaml")
    yield cluster["spec"]
    [service] = documents("kubernetes/ray-service.yaml")
    yield service["spec"]["rayClusterConfig"]


def groups(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [spec["headGroupSpec"], *spec["workerGroupSpecs"]]


def test_the_dockerfile_passes_its_linter() -> None:
    said = subprocess.run(
        [BIN / "hadolint", INFRA / "containers/Dockerfile"], capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stdout


def test_images_hold_only_what_is_installed() -> None:
    """No lake, no environment and no `.env` of the checkout: everything is left out but what is named."""
    rules = [
        line for line in (INFRA / "containers/Dockerfile.dockerignore").read_text().splitlines() if line[:1] != "#"
    ]
    assert rules[0] == "*"
    taken = {rule[1:] for rule in rules if rule.startswith("!")}
    copied = set()
    for line in re.findall(r"^COPY (.*)$", (INFRA / "containers/Dockerfile").read_text(), re.M):
        copied |= set(line.split()[:-1])
    assert copied == taken
    assert all((ROOT / name).exists() for name in taken)


def test_images_are_not_root_and_each_named_target_exists() -> None:
    text = (INFRA / "containers/Dockerfile").read_text()
    targets = re.findall(r"^FROM \S+ AS (\w+)$", text, re.M)
    for target, part in zip(targets, re.split(r"^FROM .*$", text, flags=re.M)[1:], strict=True):
        users = re.findall(r"^USER (\d+)$", part, re.M)
        assert (users or ["1001"])[-1] != "0", target
    used = {image for file in INFRA.rglob("*.yaml") for image in re.findall(r"geofix:(\w+)", file.read_text())}
    used |= {image for file in INFRA.rglob("*.json") for image in re.findall(r"geofix:(\w+)", file.read_text())}
    assert used == set(targets)


def test_compose_files_fit_their_schema() -> None:
    files = [INFRA / "compose/compose.yaml", INFRA / "compose/gpu.yaml"]
    command = [BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", *files]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout


def test_compose_publishes_on_loopback_only() -> None:
    ports = [port for service in compose()["services"].values() for port in service.get("ports", [])]
    assert len(ports) >= 4
    assert all(port.startswith("127.0.0.1:") for port in ports), ports


def test_compose_holds_no_secret_and_refuses_to_start_without() -> None:
    text = (INFRA / "compose/compose.yaml").read_text()
    required = set(re.findall(r"\$\{(\w+):\?", text))
    offered = {line.partition("=")[0]: line.partition("=")[2] for line in _lines("compose/env.example")}
    assert required == offered.keys()
    assert not any(offered.values())
    for service in compose()["services"].values():
        for name, value in service.get("environment", {}).items():
            if re.search(r"PASSWORD|SECRET|TOKEN|_KEY|AUTH_STRING|CONNECTION_URL", name):
                assert "${" in str(value), f"{name} is written down"


def test_compose_waits_for_what_it_names_and_pins_images() -> None:
    services = compose()["services"]
    for name, service in services.items():
        for other, how in service.get("depends_on", {}).items():
            assert other in services and "healthcheck" in services[other], (name, other)
            assert how["condition"] == "service_healthy"
        assert re.search(r":[^:]+$", service["image"]) and not service["image"].endswith(":latest"), name
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            if source.startswith("."):
                assert (INFRA / "compose" / source).exists(), (name, source)


def test_every_service_that_prometheus_asks_is_there() -> None:
    [settings] = documents("prometheus/prometheus.yml")
    services = compose()["services"]
    own = yaml.safe_load((INFRA / "compose/settings.yaml").read_text())["observe"]
    jobs = {job["job_name"]: job for job in settings["scrape_configs"]}
    [target] = jobs["geofix"]["static_configs"][0]["targets"]
    assert target == f"prefect-worker:{own['metrics_port']}" and "prefect-worker" in services
    [found] = jobs["ray"]["dns_sd_configs"]
    assert set(found["names"]) <= services.keys()
    for name in found["names"]:
        assert f"--metrics-export-port={found['port']}" in services[name]["command"]


@pytest.mark.parametrize("name", ["compose/settings.yaml", "kubernetes/geofix.yaml"])
def test_the_settings_are_settings_of_geofix(name: str, tmp_path: Path) -> None:
    text = (INFRA / name).read_text()
    if name.startswith("kubernetes"):
        [text] = [one["data"]["settings.yaml"] for one in documents(name) if one["kind"] == "ConfigMap"]
    (tmp_path / "settings.yaml").write_text(text)
    config = load_config(file=str(tmp_path / "settings.yaml"))
    assert config.spread.address and config.observe.metrics_port


def test_the_ray_cluster_fits_rays_schema() -> None:
    [cluster] = documents("ray/cluster.yaml")
    schema = json.loads((Path(ray.__file__).parent / "autoscaler/ray-schema.json").read_text())
    jsonschema.validate(cluster, schema)
    # Ray's schema lets unknown top-level fields pass.
    assert set(cluster) - set(schema["properties"]) <= {"min_workers"}
    assert "--env-file=/etc/geofix/keys.env" in cluster["docker"]["run_options"]


def test_every_option_of_ray_start_exists() -> None:
    commands = [" ".join(service["command"]) for name, service in compose()["services"].items() if "ray-" in name]
    commands += [" ".join(compose()["services"]["prefect-worker"]["command"])]
    [cluster] = documents("ray/cluster.yaml")
    commands += [*cluster["head_start_ray_commands"], *cluster["worker_start_ray_commands"]]
    given = [option for text in commands for option in re.findall(r"(--[\w-]+)", text.partition("exec")[0])]
    given += [f"--{name}" for spec in ray_clusters() for group in groups(spec) for name in group["rayStartParams"]]
    assert len(given) > 15
    assert set(given) <= RAY_OPTIONS, set(given) - RAY_OPTIONS


@pytest.mark.parametrize("name", ["geofix", "ray-cluster", "ray-service"])
def test_kubernetes_objects_fit_their_schemas(name: str) -> None:
    for one in documents(f"kubernetes/{name}.yaml"):
        assert one["metadata"]["namespace"] == "geofix"
        if not one["apiVersion"].startswith("ray.io/"):  # schemas of KubeRay are in no package
            kubernetes_validate.validate(one, KUBERNETES, strict=True)


def test_pods_of_ray_fit_the_schema_and_hold_no_secret() -> None:
    for spec in ray_clusters():
        assert spec["rayVersion"] == ray.__version__
        assert spec["authOptions"] == {"mode": "token"}
        assert spec["headGroupSpec"]["serviceType"] == "ClusterIP"
        for group in groups(spec):
            _check_pod(group["template"])
        for group in spec["workerGroupSpecs"]:
            assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


def test_what_the_ray_service_serves_fits_ray_serves_schema() -> None:
    [service] = documents("kubernetes/ray-service.yaml")
    found = ServeDeploySchema.model_validate(yaml.safe_load(service["spec"]["serveConfigV2"]))
    [application] = found.applications
    assert application.import_path == "ray.serve.llm:build_openai_app"


def test_helm_values_name_secrets_that_the_docs_make() -> None:
    text = (ROOT / "docs/cluster.md").read_text()
    for name in ("server", "worker"):
        [values] = documents(f"kubernetes/values-prefect-{name}.yaml")
        for secret in re.findall(r"'existingSecret': '([\w-]+)'", str(values)):
            assert f"create secret generic {secret} " in text, secret
    assert "create secret generic geofix-keys " in text
    assert values["worker"]["config"]["workPool"] == "geofix"


def test_the_docker_work_pool_makes_a_container() -> None:
    job = _configured(DockerWorkerJobConfiguration, "docker", {"mem_limit": "8g", "env": {"A": "b"}})
    assert (job.image, job.networks, job.mem_limit, job.env["A"]) == ("geofix:cpu", ["geofix_inside"], "8g", "b")
    assert job.container_create_kwargs["cap_drop"] == ["ALL"] and not job.privileged
    declared = set(compose()["volumes"])
    assert {volume.partition(":")[0].removeprefix("geofix_") for volume in job.volumes} <= declared


def test_the_kubernetes_work_pool_makes_a_job() -> None:
    job = _configured(KubernetesWorkerJobConfiguration, "kubernetes", {"env": {"A": "b"}, "memory": "8Gi"})
    manifest = {**job.job_manifest, "metadata": {**job.job_manifest["metadata"]}}
    pod = manifest["spec"]["template"]
    [container] = pod["spec"]["containers"]
    assert container["resources"]["limits"]["memory"] == "8Gi"
    container["env"] = [
        {"name": name, "value": value} for name, value in container["env"].items()
    ]  # as its worker does
    for name in ("completions", "parallelism"):  # Prefect wants them in the pod, where Kubernetes ignores them
        del pod["spec"][name]
    kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
    _check_pod(pod)
    there = {(one["kind"], one["metadata"]["name"]) for one in documents("kubernetes/geofix.yaml")}
    assert ("ServiceAccount", pod["spec"]["serviceAccountName"]) in there
    for volume in pod["spec"]["volumes"]:
        claim, settings = volume.get("persistentVolumeClaim"), volume.get("configMap")
        assert (
            ("PersistentVolumeClaim", claim["claimName"]) in there
            if claim
            else ("ConfigMap", settings["name"]) in there
        )


def _configured(kind: type[Any], name: str, values: dict[str, Any]) -> Any:
    """What a worker makes of the template and these job variables."""
    template = json.loads((INFRA / f"prefect/{name}.json").read_text())
    jsonschema.validate(values, template["variables"])
    defaults = {key: one["default"] for key, one in template["variables"]["properties"].items() if "default" in one}
    assert set(template["job_configuration"]) <= kind.model_fields.keys()
    return kind(**apply_values(template["job_configuration"], defaults | values))


def _check_pod(template: dict[str, Any]) -> None:
    named = {"metadata": {}, **template}
    wrapped = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "one"}, "template": named}
    kubernetes_validate.validate(wrapped, KUBERNETES, strict=True)
    spec = template["spec"]
    assert spec["securityContext"]["runAsNonRoot"]
    for container in spec["containers"]:
        assert {"secretRef": {"name": "geofix-keys"}} in container["envFrom"]
        assert not [one for one in container.get("env", []) if re.search("KEY|TOKEN|SECRET|PASSWORD", one["name"])]


def _lines(name: str) -> list[str]:
    return [line for line in (INFRA / name).read_text().splitlines() if line and not line.startswith("#")]
