"""The files of `deploy/` agree with each other, with the top-level limits, and with the guide."""

import copy
import os
import re
import runpy
import shlex
import socket
import subprocess
import sys
from ipaddress import ip_address, ip_network
from pathlib import Path
from shutil import which
from typing import Any

import pytest
import redis
import yaml
from sqlalchemy import make_url

from ingestion_pipeline.settings import load_settings, variables
from ingestion_pipeline_tests.deployment.deploy_files import (
    DEPLOY,
    PROGRAMS,
    ROLES,
    ROOT,
    UNITS,
    example_environment,
    read_unit,
    unit_command,
)
from ingestion_pipeline_tests.deployment.kubernetes_objects import mistakes, violations
from ingestion_pipeline_tests.polling_runs import wait_until

LOCAL = yaml.safe_load((ROOT / "dagster.yaml").read_text())
PRODUCTION = yaml.safe_load((DEPLOY / "dagster.yaml").read_text())
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
CONTAINERFILE = (DEPLOY / "Containerfile").read_text()
KUBERNETES = yaml.safe_load((DEPLOY / "kubernetes.yaml").read_text())["items"]
HELM, HELM_CELERY = (yaml.safe_load((DEPLOY / "helm" / name).read_text()) for name in ("values.yaml", "celery.yaml"))
OURS = {name: service for name, service in COMPOSE["services"].items() if name not in {"db", "redis"}}
GUIDE = (ROOT / "docs" / "operating" / "deployment.md").read_text()


def env_references(document: Any) -> set[str]:
    """Return every `env: NAME` of a document."""
    if isinstance(document, dict):
        if set(document) == {"env"}:
            return {document["env"]}
        return {name for value in document.values() for name in env_references(value)}
    if isinstance(document, list):
        return {name for value in document for name in env_references(value)}
    return set()


def test_production_keeps_every_limit_of_the_top_level_file() -> None:
    queue = PRODUCTION["run_coordinator"]["config"]
    runs = LOCAL["concurrency"]["runs"]

    assert queue["tag_concurrency_limits"] == runs["tag_concurrency_limits"]
    assert LOCAL["run_queue"].items() <= queue.items()
    own = LOCAL["run_monitoring"] | {"poll_interval_seconds": PRODUCTION["run_monitoring"]["poll_interval_seconds"]}
    assert own.items() <= PRODUCTION["run_monitoring"].items()
    assert LOCAL["python_logs"] == PRODUCTION["python_logs"]
    assert PRODUCTION["telemetry"] == PRODUCTION["nux"] == {"enabled": False}


@pytest.mark.slow
def test_dagster_accepts_the_file_and_launches_runs_by_celery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dagster._core.instance.config import dagster_instance_config
    from dagster._core.instance.ref import InstanceRef

    for name, value in example_environment().items():
        monkeypatch.setenv(name, value)
    (tmp_path / "dagster.yaml").symlink_to(DEPLOY / "dagster.yaml")
    dagster_instance_config(str(tmp_path))  # raises on an invalid file
    ref = InstanceRef.from_dir(str(tmp_path))

    assert type(ref.run_launcher).__name__ == "CeleryRunLauncher"
    coordinator: Any = ref.run_coordinator
    queue = coordinator.get_run_queue_config()
    assert queue.max_concurrent_runs == 4
    assert len(queue.tag_concurrency_limits) == 2


def test_the_workers_take_one_run_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in example_environment().items():
        monkeypatch.setenv(name, value)
    celery = runpy.run_path(str(DEPLOY / "dagster_celery_config.py"))

    assert celery["broker_url"] == example_environment()["CELERY_BROKER_URL"]
    assert (celery["worker_prefetch_multiplier"], celery["worker_disable_prefetch"]) == (1, True)
    assert celery["task_acks_late"] is False


def test_the_example_has_every_variable_that_a_file_requires() -> None:
    workspace = yaml.safe_load((DEPLOY / "workspace.yaml").read_text())
    required = env_references(PRODUCTION) | env_references(workspace)
    for unit in ROLES.values():
        required |= set(re.findall(r"\$\{(\w+)\}", read_unit(unit)["ExecStart"]))

    assert required <= example_environment().keys()
    assert required - {"DAGSTER_WEBSERVER_HOST", "DAGSTER_WEBSERVER_PORT"} <= set(COMPOSE["x-ours"]["environment"])


def test_the_example_names_only_existing_settings_with_valid_values() -> None:
    settings = {name: value for name, value in example_environment().items() if name.startswith("INGESTION_")}

    assert settings.keys() <= variables().keys()
    assert load_settings(settings).polling.shards == 2 * int(example_environment()["DAGSTER_MAX_CONCURRENT_RUNS"])


@pytest.mark.parametrize("role", ROLES)
def test_the_containers_run_the_commands_of_the_units(role: str) -> None:
    anywhere = {"DAGSTER_CODE_HOST": "0.0.0.0", "DAGSTER_WEBSERVER_HOST": "0.0.0.0"}
    program, *arguments = unit_command(role, example_environment() | anywhere, instance="compose")

    assert COMPOSE["services"][role]["command"] == [program.removeprefix(PROGRAMS), *arguments]


@pytest.mark.parametrize("unit", sorted(path.name for path in UNITS.glob("*.service")))
def test_a_unit_restarts_and_does_not_run_as_root(unit: str) -> None:
    unit_settings = read_unit(unit)

    assert unit in ROLES.values()
    assert (unit_settings["Restart"], unit_settings["User"]) == ("always", "ingestion")
    assert unit_settings["EnvironmentFile"] == "/etc/ingestion/environment"
    assert unit_settings["ExecStart"].startswith(PROGRAMS)
    assert unit_settings["WantedBy"] == unit_settings["PartOf"] == "ingestion.target"


def test_a_stopped_worker_has_time_to_finish_its_run() -> None:
    worker = read_unit(ROLES["worker"])

    assert worker["KillMode"] == "mixed"
    assert int(worker["TimeoutStopSec"]) > load_settings({}).polling.slice_seconds


def instructions() -> list[tuple[str, str]]:
    joined = CONTAINERFILE.replace("\\\n", " ")
    lines = [line for line in joined.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def test_the_containerfile_follows_the_rules_of_hadolint() -> None:
    """The rules of hadolint that apply: pinned images, small layers, no root, commands as lists."""
    by_word = dict(instructions())
    runs = " ".join(rest for word, rest in instructions() if word == "RUN")

    assert re.search(r":[\w.-]*\d[\w.-]*$", by_word["FROM"])  # DL3006, DL3007
    assert "pip wheel" in runs
    assert "-e " not in runs  # what runs is the wheel, not a checkout
    assert "--no-install-recommends" in runs  # DL3015
    assert "rm -rf /var/lib/apt/lists/*" in runs  # DL3009
    assert "--no-cache-dir" in runs  # DL3042
    assert "sudo" not in runs  # DL3004
    assert by_word["WORKDIR"].startswith("/")  # DL3000
    assert by_word["USER"] == re.findall(r"--uid (\d+)", runs)[0]  # DL3002; by number, or runAsNonRoot refuses it
    assert by_word["CMD"].startswith("[")  # DL3025
    assert by_word["ENTRYPOINT"].startswith("[")
    assert "ADD" not in by_word  # DL3020
    [workdir, *_] = [rest for word, rest in instructions() if word == "WORKDIR" and rest != "/src"]
    [copied] = [rest.split()[:-1] for word, rest in instructions() if word == "COPY" and rest.startswith("deploy/")]
    assert all((ROOT / file).is_file() for file in copied)
    assert {"deploy/dagster.yaml", "deploy/workspace.yaml", "deploy/dagster_celery_config.py"} == set(copied)
    assert workdir == PROGRAMS.removesuffix("/.venv/bin/")
    words = {word for word, _ in instructions()}
    assert words <= {*("FROM", "ARG", "RUN", "WORKDIR", "COPY", "ENV", "USER", "VOLUME", "ENTRYPOINT", "CMD")}


def test_the_compose_file_pins_every_image_and_contains_no_password() -> None:
    images = {service["image"] for service in COMPOSE["services"].values()}

    assert all(re.search(r":\d", image) for image in images), images
    text = (DEPLOY / "compose.yaml").read_text()
    assert not re.search(r"PASSWORD: (?!\$\{)", text)


@pytest.mark.slow
def test_the_compose_file_has_the_schema_of_compose() -> None:
    program = Path(sys.executable).with_name("check-jsonschema")

    checked = subprocess.run(
        [program, "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml"],
        check=False,
        capture_output=True,
        text=True,
    )

    assert checked.returncode == 0, checked.stdout


def test_a_password_of_compose_may_have_any_character() -> None:
    variables = COMPOSE["x-ours"]["environment"]

    for name in ("INGESTION_DATABASE_URL", "DAGSTER_DATABASE_URL"):
        assert make_url(variables[name]).password is None
    assert variables["PGPASSWORD"].startswith("${POSTGRES_PASSWORD")


def test_every_setting_and_secret_reaches_the_containers_of_compose() -> None:
    assert all(service["env_file"] == [FILE_OF_SETTINGS] for service in OURS.values())
    settings = {name for name in COMPOSE["x-ours"]["environment"] if name.startswith("INGESTION_")}
    assert settings <= variables().keys()


FILE_OF_SETTINGS = {"path": "${ENVIRONMENT_FILE:-environment}", "required": False}


def test_what_a_service_of_compose_waits_for_can_become_healthy() -> None:
    for name, service in COMPOSE["services"].items():
        for other, wait in service.get("depends_on", {}).items():
            is_health = wait["condition"] == "service_healthy"
            assert not is_health or "healthcheck" in COMPOSE["services"][other], (name, other)
    assert {name for name, service in OURS.items() if "healthcheck" not in service} == {"init"}
    assert all(service["cap_drop"] == ["ALL"] and service["mem_limit"] for service in OURS.values())


@pytest.mark.skipif(which("redis-server") is None, reason="needs redis-server, `make system`")
@pytest.mark.slow
def test_the_redis_of_compose_refuses_who_does_not_know_the_password(tmp_path: Path) -> None:
    [shell, flag, script] = COMPOSE["services"]["redis"]["command"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = script.replace("$$", "$").replace("printf", f"printf 'port {port}\\nbind 127.0.0.1\\n'; printf")
    script = "( " + script.replace(" | exec", " ) | exec")
    server = subprocess.Popen([shell, flag, script], env={**os.environ, "REDISCLI_AUTH": "s3cret"}, cwd=tmp_path)
    try:
        refused, accepted = redis.Redis(port=port), redis.Redis(port=port, password="s3cret")
        wait_until(lambda: is_answering(accepted))
        with pytest.raises(redis.AuthenticationError):
            refused.ping()
        assert accepted.config_get("save") == {"save": ""}
    finally:
        server.terminate()
        server.wait()


def is_answering(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


def test_no_file_with_a_password_is_copied_into_an_image() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()

    assert {"**/environment", "**/.env", "**/.env.*", "**/profile.yaml", ".git", "**/.venv"} <= set(ignored)


def pods() -> dict[str, dict[str, Any]]:
    """Return the pod of each role, with its number of replicas."""
    deployments = [manifest for manifest in KUBERNETES if manifest["kind"] == "Deployment"]
    return {
        deployment["metadata"]["name"].removeprefix("ingestion-"): deployment["spec"]["template"]["spec"]
        | {"replicas": deployment["spec"]["replicas"]}
        for deployment in deployments
    }


@pytest.mark.parametrize("role", ROLES)
def test_the_pods_run_the_commands_of_the_units(role: str) -> None:
    anywhere = {"DAGSTER_CODE_HOST": "0.0.0.0", "DAGSTER_WEBSERVER_HOST": "0.0.0.0"}
    program, *arguments = unit_command(role, example_environment() | anywhere, instance="pod")
    [container] = pods()[role]["containers"]

    assert container["args"] == [program.removeprefix(PROGRAMS), *arguments]
    assert container["envFrom"] == [{"secretRef": {"name": "ingestion"}}]
    assert pods()[role]["enableServiceLinks"] is False  # INGESTION_CODE_PORT is no setting
    own = re.search(r"--uid (\d+)", CONTAINERFILE)
    assert own is not None
    assert str(pods()[role]["securityContext"]["runAsUser"]) == own[1]


def test_there_is_a_worker_pod_per_run_and_each_has_time_to_finish() -> None:
    worker = pods()["worker"]

    assert str(worker["replicas"]) == example_environment()["DAGSTER_MAX_CONCURRENT_RUNS"]
    assert worker["terminationGracePeriodSeconds"] > load_settings({}).polling.slice_seconds
    assert all(pods()[role]["replicas"] == 1 for role in ROLES if role != "worker")


def test_the_services_point_to_existing_ports_and_pods() -> None:
    services = {
        manifest["metadata"]["name"]: manifest["spec"] for manifest in KUBERNETES if manifest["kind"] == "Service"
    }

    assert services.keys() == {"ingestion-code", "ingestion-webserver"}
    for name, spec in services.items():
        role = name.removeprefix("ingestion-")
        assert spec["selector"] == {"app": name}
        assert str(spec["ports"][0]["port"]) in pods()[role]["containers"][0]["args"]
    [container] = pods()["daemon"]["containers"]
    assert {"name": "DAGSTER_CODE_HOST", "value": "ingestion-code"} in container["env"]


def test_pod_images_are_pinned_to_this_release_and_no_mount_hides_their_files() -> None:
    [version] = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    for pod in pods().values():
        [container] = pod["containers"]
        assert container["image"] == f"ingestion_pipeline:{version}"
        mounted = [mount["mountPath"] for mount in container["volumeMounts"]]
        home = example_environment()["DAGSTER_HOME"]
        assert not any(home == path or home.startswith(f"{path}/") for path in mounted)


def test_the_guide_names_only_existing_files_units_and_programs() -> None:
    text = GUIDE
    files = set(re.findall(r"\bdeploy/([\w./@-]+\w)", text))
    table = re.findall(r"^\| (`[^|]+`) \|", text.partition("## Set up")[0], re.M)
    files |= {name for cell in table for name in re.findall(r"`([\w./]+)`", cell)}
    units = set(re.findall(r"\b(ingestion-(?:code|daemon|webserver|worker@))", text))

    assert {"dagster.yaml", "kubernetes.yaml", "compose.yaml"} <= files
    assert [name for name in files if not (DEPLOY / name).exists()] == []
    assert units == {unit.removesuffix(".service") for unit in ROLES.values()}
    assert "enable ingestion.target" in text  # else nothing comes back after a boot


@pytest.mark.parametrize("name", ["Containerfile", "compose.yaml", "kubernetes.yaml", "helm/"])
def test_files_that_were_never_started_are_marked_so(name: str) -> None:
    table = GUIDE.partition("## Set up")[0].splitlines()
    [line] = [line for line in table if line.startswith("| `") and name in line]

    assert "**validated, never started**" in line


@pytest.mark.parametrize("manifest", KUBERNETES + HELM_CELERY["extraManifests"], ids=lambda one: one["kind"])
def test_each_object_has_the_fields_of_its_kind(manifest: dict[str, Any]) -> None:
    assert mistakes(manifest) == []


def test_a_field_that_does_not_exist_or_has_another_type_is_a_mistake() -> None:
    deployment = copy.deepcopy(next(manifest for manifest in KUBERNETES if manifest["kind"] == "Deployment"))
    deployment["spec"]["replica"] = 2
    deployment["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "A", "value": 1}]
    del deployment["spec"]["selector"]

    found = mistakes(deployment)

    assert len(found) == 3
    assert any("replica" in mistake for mistake in found)


def all_pods() -> dict[str, dict[str, Any]]:
    """Return every pod of the manifests and of the chart's values."""
    manifests = [*KUBERNETES, *HELM_CELERY["extraManifests"]]
    of_manifests = {
        f"{number} {manifest['metadata']['name']}": manifest["spec"]["template"]["spec"]
        for number, manifest in enumerate(manifests)
        if "template" in manifest["spec"]
    }
    [deployment] = HELM["dagster-user-deployments"]["deployments"]
    parts = {"code": deployment, "webserver": HELM["dagsterWebserver"], "daemon": HELM["dagsterDaemon"]}
    of_chart = {
        f"chart {name}": {
            "securityContext": part["podSecurityContext"],
            "containers": [{"name": name, **{key: part[key] for key in ("securityContext", "resources")}}],
            "volumes": part.get("volumes", []),
            "initContainers": part.get("initContainers", []),
        }
        for name, part in parts.items()
    }
    return of_manifests | of_chart


@pytest.mark.parametrize("name", all_pods())
def test_a_pod_is_accepted_by_a_restricted_namespace_and_has_a_memory_limit(name: str) -> None:
    pod = all_pods()[name]

    assert violations(pod) == []
    assert pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"
    for container in (*pod["containers"], *pod["initContainers" if "initContainers" in pod else "containers"]):
        assert container["resources"]["limits"]["memory"] == "1Gi"
    own = re.search(r"--uid (\d+)", CONTAINERFILE)
    assert own is not None
    assert str(pod["securityContext"]["runAsUser"]) == own[1]


def test_every_pod_that_stays_has_a_liveness_probe() -> None:
    workers = [manifest["spec"]["template"]["spec"] for manifest in HELM_CELERY["extraManifests"]]

    for pod in (*pods().values(), *workers):
        assert all("livenessProbe" in container for container in pod["containers"])
    [deployment] = HELM["dagster-user-deployments"]["deployments"]
    assert "livenessProbe" in deployment
    assert "livenessProbe" in HELM["dagsterDaemon"]


def probe_commands() -> set[str]:
    """Return the commands of probes and health checks, without the shell around them."""
    probes = [pod["containers"][0]["livenessProbe"] for pod in pods().values()]
    probes += [HELM["dagsterDaemon"]["livenessProbe"]]
    commands = [probe["exec"]["command"] for probe in probes if "exec" in probe]
    commands += [service["healthcheck"]["test"][1:] for service in OURS.values() if "healthcheck" in service]
    return {command[-1] if len(command) == 1 or command[0] == "sh" else shlex.join(command) for command in commands}


@pytest.mark.slow
@pytest.mark.parametrize("command", sorted(command for command in probe_commands() if "urllib" not in command))
def test_the_command_of_a_probe_exists_with_its_options(command: str) -> None:
    program, *arguments = shlex.split(command.replace("$$", "$"))
    environment = {**os.environ, **example_environment(), "PATH": os.environ["PATH"], "PYTHONPATH": str(DEPLOY)}

    shown = subprocess.run(
        [Path(sys.executable).with_name(program), *arguments, "--help"],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
    )

    assert shown.returncode == 0, shown.stderr


@pytest.mark.slow
def test_the_code_server_answers_the_probe_by_its_service(tmp_path: Path) -> None:
    from grpc import RpcError, insecure_channel
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    [container] = pods()["code"]["containers"]
    [name] = {container[probe]["grpc"]["service"] for probe in ("readinessProbe", "livenessProbe")}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "code.py").write_text("import dagster\n\ndefs = dagster.Definitions()\n")
    command = [*("api", "grpc", "--host", "127.0.0.1", "--port", str(port)), "--python-file", str(tmp_path / "code.py")]
    server = subprocess.Popen([Path(sys.executable).with_name("dagster"), *command], cwd=tmp_path)

    def is_serving() -> bool:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(service=name))
        except RpcError:
            return False
        return answer.status == health_pb2.HealthCheckResponse.SERVING

    try:
        with insecure_channel(f"127.0.0.1:{port}") as channel:
            wait_until(is_serving)
    finally:
        server.terminate()
        server.wait()


def test_the_network_policies_leave_only_the_ports_of_the_services_open() -> None:
    policies = {
        manifest["metadata"]["name"]: manifest["spec"] for manifest in KUBERNETES if "Policy" in manifest["kind"]
    }

    everything = policies.pop("ingestion")
    assert "ingress" not in everything
    blocked = [block for rule in everything["egress"] for to in rule["to"] for block in to["ipBlock"]["except"]]
    assert all(any(ip_address(name) in ip_network(block) for block in blocked) for name in METADATA_ADDRESSES)
    for name, policy in policies.items():
        [rule] = policy["ingress"]
        [service] = [one for one in KUBERNETES if one["kind"] == "Service" and one["metadata"]["name"] == name]
        assert [port["port"] for port in rule["ports"]] == [port["port"] for port in service["spec"]["ports"]]
    labels = [
        manifest["spec"]["template"]["metadata"]["labels"] for manifest in KUBERNETES if "template" in manifest["spec"]
    ]
    assert all(label["part-of"] == "ingestion" for label in labels)


METADATA_ADDRESSES = ("169.254.169.254", "fd00:ec2::254")


def test_the_chart_keeps_the_limits_of_production() -> None:
    daemon, runs = HELM["dagsterDaemon"], PRODUCTION["run_coordinator"]["config"]

    queue = daemon["runCoordinator"]["config"]["queuedRunCoordinator"]
    assert queue["tagConcurrencyLimits"] == runs["tag_concurrency_limits"]
    assert queue["dequeueIntervalSeconds"] == runs["dequeue_interval_seconds"]
    assert str(queue["maxConcurrentRuns"]) == example_environment()["DAGSTER_MAX_CONCURRENT_RUNS"]
    monitoring = {re.sub(r"[A-Z]", lambda m: f"_{m[0].lower()}", key): v for key, v in daemon["runMonitoring"].items()}
    own = {"start_timeout_seconds": 300}  # a pod that has to be scheduled
    assert monitoring == PRODUCTION["run_monitoring"] | own
    assert HELM_CELERY["dagsterDaemon"]["runMonitoring"] == {"startTimeoutSeconds": 90}
    assert HELM["telemetry"] == {"enabled": False}
    launcher = HELM_CELERY["runLauncher"]["config"]["customRunLauncher"]
    assert launcher == PRODUCTION["run_launcher"]


def test_the_chart_runs_the_commands_and_mounts_of_the_manifests() -> None:
    [deployment] = HELM["dagster-user-deployments"]["deployments"]
    [code], [worker] = pods()["code"]["containers"], pods()["worker"]["containers"]
    [manifest] = HELM_CELERY["extraManifests"]
    [chart_worker] = manifest["spec"]["template"]["spec"]["containers"]

    assert code["args"][-4:] == deployment["dagsterApiGrpcArgs"]
    assert chart_worker["args"] == worker["args"]
    assert chart_worker["livenessProbe"] == worker["livenessProbe"]
    assert deployment["volumeMounts"] == code["volumeMounts"] == chart_worker["volumeMounts"][1:]
    assert f"{deployment['image']['repository']}:{deployment['image']['tag']}" == code["image"] == chart_worker["image"]
    named = {variable["name"] for variable in deployment["env"]}
    assert named <= {*variables()}
    assert named < {variable["name"] for variable in chart_worker["env"]}
