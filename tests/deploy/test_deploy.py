"""What runs the server elsewhere: image, compose file, unit, manifests. Each is read by its own tool, or by its schema.

No container engine and no cluster is needed, so none of them is started here; docs/install.md says so.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from curbstone.cli.connection import CONTEXT_VARIABLE, VARIABLES
from curbstone.exit_codes import WRONG
from tests.kit.commands import running
from tests.kit.ops_tools import ROOT, needs_ops_tools, run
from tests.kit.server import ServerProcess, call, clean_environment
from tests.kit.waiting import wait_until
from tests.kit.wheel import copy_of_the_checkout

DEPLOY = ROOT / "deploy"
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
UNIT = DEPLOY / "systemd" / "curbstone.service"
KUBERNETES = DEPLOY / "kubernetes"
VARIANTS = ["trusted-network", "users", "tls", "production", "failover"]

IGNORED = {line for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line.isidentifier()}
IGNORED |= {"curbstone-data"}

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")


def documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def settings_in(text: str) -> set[str]:
    of_clients = {CONTEXT_VARIABLE, *VARIABLES.values()}
    return set(re.findall(r"\bCURBSTONE_[A-Z_]+\b", text)) - of_clients


def test_every_named_setting_exists() -> None:
    from curbstone.settings import OPTIONS

    known = {f"CURBSTONE_{name.upper()}" for name in OPTIONS} | {"CURBSTONE_COMPILED"}  # for setup.py
    for path in DEPLOY.rglob("*"):
        if path.is_file():
            assert settings_in(path.read_text(encoding="utf-8")) <= known, path


@needs_ops_tools
def test_the_dockerfile_passes_a_linter() -> None:
    run("hadolint", DOCKERFILE)


def test_image_contains_everything_shipped() -> None:
    """A folder that .dockerignore leaves out would be missing from the image, and nobody would see it here."""
    folders = {path.resolve().name for path in (ROOT / "curbstone").iterdir() if path.is_symlink()}
    needed = {"curbstone", "deploy", "pyproject.toml", "constraints.txt", "README.md", "LICENSE"}
    assert not IGNORED & (folders | needed)


def test_image_user_owns_only_its_data() -> None:
    text = DOCKERFILE.read_text(encoding="utf-8")
    final = text.rpartition("\nFROM ")[2]
    assert re.search(r"^USER 10001:10001$", final, re.M)
    assert "HEALTHCHECK" in final
    assert final.index("COPY") < final.index("USER"), "what is installed belongs to root"


def test_build_accepts_a_base_image_digest() -> None:
    text = DOCKERFILE.read_text(encoding="utf-8")
    assert re.search(r"^ARG PYTHON_IMAGE=python:", text, re.M)
    assert set(re.findall(r"^FROM (\S+)", text, re.M)) == {"${PYTHON_IMAGE}"}


@pytest.mark.soak
def test_image_build_steps_produce_a_working_server(tmp_path: Path) -> None:
    """The script that installs into the image, run on what the image is made of, and the command it starts."""
    source = copy_of_the_checkout(tmp_path)
    for name in IGNORED:
        shutil.rmtree(source / name, ignore_errors=True)
    target = tmp_path / "opt" / "curbstone"
    subprocess.run([source / "deploy" / "docker" / "install.sh", source, target], check=True)
    shutil.rmtree(source)
    assert not (target / "bin" / "pip").exists()
    assert run(target / "bin" / "curbstone", "--version").endswith(" (compiled)\n")
    set_there = dict(re.findall(r"(CURBSTONE_\w+)=(\S+)", DOCKERFILE.read_text(encoding="utf-8")))
    ports = {name: "127.0.0.1:0" for name in set_there if name.endswith("_ADDR")}
    environment = clean_environment(**{**set_there, **ports, "CURBSTONE_DATA": str(tmp_path / "data")})
    with subprocess.Popen(
        [target / "bin" / "curbstone", "serve"], env=environment, stdout=subprocess.PIPE, text=True, cwd=tmp_path
    ) as server:
        assert server.stdout is not None
        ready = server.stdout.readline()
        server.terminate()
        assert server.wait(60) == 0
    assert re.fullmatch(r"curbstone ready( \w+=127.0.0.1:\d+)+\n", ready)


def test_compose_file_mounts_existing_paths() -> None:
    folder = DEPLOY / "compose"
    (compose,) = documents(folder / "compose.yaml")
    for name, service in compose["services"].items():
        assert set(service.get("depends_on", ())) <= set(compose["services"]), name
        for port in service["ports"]:
            assert port.startswith("127.0.0.1:"), f"{name}: {port} is open to other machines"
        for volume in service["volumes"]:
            place = volume.split(":")[0]
            assert (folder / place).exists() if place.startswith(".") else place in compose["volumes"], volume
    assert (folder / compose["services"]["curbstone"]["build"]["context"]).resolve() == ROOT


def test_standby_compose_file_runs_a_standby(tmp_path: Path) -> None:
    folder = DEPLOY / "compose"
    (compose,) = documents(folder / "standby.yaml")
    (service,) = compose["services"].values()
    assert (folder / service["build"]["context"]).resolve() == ROOT
    assert {volume.split(":")[0] for volume in service["volumes"]} == compose["volumes"].keys()
    (first, option, of) = service["command"]
    assert of.startswith("${OF:?")
    env = {name: value for name, value in service["environment"].items() if value is not None}
    with ServerProcess(tmp_path / "data", "--standby-backlog=1MiB") as server:
        command = [first, option, server.url, "--data=copy", "--http-addr=127.0.0.1:0"]
        with running(*command, cwd=tmp_path, **env) as standby:
            wait_until(lambda: any(each["usable"] for each in call(server, "GET", "/v2/standby")["followers"]))
            standby.send_signal(signal.SIGTERM)
            assert standby.wait(60) == 0


@needs_systemd
@pytest.mark.parametrize(
    "name", ["curbstone.service", "curbstone-archive.service", "curbstone-follow.service", "curbstone-standby.service"]
)
def test_systemd_unit_is_valid_and_hardened(tmp_path: Path, name: str) -> None:
    command = tmp_path / "curbstone"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    unit = tmp_path / name
    text = UNIT.with_name(name).read_text(encoding="utf-8").replace("/opt/curbstone/bin/curbstone ", f"{command} ")
    unit.write_text(re.sub(r"^Documentation=.*\n", "", text, flags=re.M))  # the page is not installed here
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    judged = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=15", unit], capture_output=True, text=True
    )
    assert judged.returncode == 0, judged.stdout


@needs_systemd
def test_systemd_unit_allows_reading_resource_limits() -> None:
    """The group @resources also forbids to read the limit of open files."""
    filters = re.findall(r"^SystemCallFilter=~(.*)$", UNIT.read_text(encoding="utf-8"), re.M)
    for group in " ".join(filters).split():
        calls = subprocess.run(["systemd-analyze", "syscall-filter", group], capture_output=True, text=True, check=True)
        assert not {"prlimit64", "getrlimit", "fdatasync", "flock"} & set(calls.stdout.split())


@cache
def built(variant: str) -> str:
    """Return the manifests of a variant, as `kubectl apply --kustomize` would send them."""
    return run("kubectl", "kustomize", KUBERNETES / variant)


def by_kind(text: str) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for document in yaml.safe_load_all(text):
        found.setdefault(document["kind"], []).append(document)
    return found


def environment(variant: str) -> dict[str, str]:
    (stateful,) = by_kind(built(variant))["StatefulSet"]
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    return {setting["name"]: setting["value"] for setting in container["env"] if "value" in setting}


@needs_ops_tools
def test_the_manifests_follow_kubernetes_schemas(tmp_path: Path) -> None:
    files = [tmp_path / f"{variant}.yaml" for variant in ("base", *VARIANTS)]
    for file in files:
        manifests = yaml.safe_load_all(built(file.stem))
        known = [each for each in manifests if "monitoring.coreos.com" not in each["apiVersion"]]
        file.write_text(yaml.safe_dump_all(known))
    run("kubernetes-validate", "--strict", *files)


@needs_ops_tools
@pytest.mark.parametrize("variant", ["base", *VARIANTS])
def test_kubernetes_manifests_are_consistent(variant: str) -> None:
    kinds = by_kind(built(variant))
    (stateful,) = kinds["StatefulSet"]
    pod = stateful["spec"]["template"]["spec"]
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    assert stateful["spec"]["replicas"] == (2 if variant == "failover" else 1)
    assert stateful["spec"]["serviceName"] in {service["metadata"]["name"] for service in kinds["Service"]}
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for service in kinds["Service"]:
        assert service["spec"]["selector"].items() <= labels.items()
        assert {port["targetPort"]: port["port"] for port in service["spec"]["ports"]}.items() <= ports.items()
    for kind in ("NetworkPolicy", "PodDisruptionBudget"):
        (one,) = kinds[kind]
        assert (one["spec"].get("selector") or one["spec"]["podSelector"])["matchLabels"].items() <= labels.items()
    clients, monitoring, *_ = kinds["NetworkPolicy"][0]["spec"]["ingress"]
    assert {port["port"] for port in clients["ports"]} == ports.keys()
    assert {port["port"] for port in monitoring["ports"]} == {"http"}, "it may look, and not reach the other protocols"
    volumes = {volume["name"] for volume in pod.get("volumes", ())}
    claims = {claim["metadata"]["name"] for claim in stateful["spec"]["volumeClaimTemplates"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes | claims


@needs_ops_tools
@pytest.mark.parametrize("variant", VARIANTS)
def test_full_disk_keeps_the_pod_ready(variant: str) -> None:
    """A pod that is not ready can't be reached by the consumers that would make room."""
    (stateful,) = by_kind(built(variant))["StatefulSet"]
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz?for=consume"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    scheme = "HTTPS" if environment(variant).get("CURBSTONE_HTTP_ADDR", "").startswith("tls://") else None
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"].get("scheme") == scheme
    assert "/readyz?for=consume" in DOCKERFILE.read_text(encoding="utf-8").partition("HEALTHCHECK")[2]


@needs_ops_tools
@pytest.mark.parametrize("variant", ["base", *VARIANTS])
def test_a_server_accepts_the_settings_of_each_variant(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but those of the base, which leaves open who may connect."""
    from curbstone.settings import SettingsError, load

    of_image = re.findall(r"^ +(CURBSTONE_\w+)=(\S+)", DOCKERFILE.read_text(encoding="utf-8"), re.M)
    for name, value in (dict(of_image) | environment(variant)).items():
        monkeypatch.setenv(name, value)
    if variant == "base":
        with pytest.raises(SettingsError, match="without a login"):
            load({})
        return
    settings = load({})
    has_no_logins = variant in ("trusted-network", "failover")
    assert settings.insecure == has_no_logins
    assert (settings.users is None) == has_no_logins
    assert all(address.tls for address in settings.http_addr) == (variant in ("tls", "production"))


@needs_ops_tools
def test_failover_pods_have_the_required_permissions() -> None:
    kinds = by_kind(built("failover"))
    (stateful,), (lease,), (role,) = kinds["StatefulSet"], kinds["Lease"], kinds["Role"]
    (account,), (binding,) = kinds["ServiceAccount"], kinds["RoleBinding"]
    pod = stateful["spec"]["template"]["spec"]
    assert environment("failover")["CURBSTONE_LEASE"] == f"k8s://default/{lease['metadata']['name']}"
    (rule,) = role["rules"]
    assert rule["resourceNames"] == [lease["metadata"]["name"]] and set(rule["verbs"]) == {"get", "update"}
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert (
        [each["name"] for each in binding["subjects"]] == [account["metadata"]["name"]] == [pod["serviceAccountName"]]
    )
    names = [each["name"] for each in pod["containers"][0]["env"]]
    assert names.index("POD_NAME") < names.index("CURBSTONE_ADVERTISE"), "only what is before it is put in"
    (policy,) = kinds["NetworkPolicy"]
    assert {port["port"] for way in policy["spec"]["egress"] for port in way["ports"]} == {"http", 53, 443, 6443}


@needs_ops_tools
def test_prometheus_operator_has_the_same_rules_and_scrapes_the_pod() -> None:
    kinds = by_kind(built("production"))
    (rules,), (monitor,) = kinds["PrometheusRule"], kinds["ServiceMonitor"]
    assert rules["spec"] == yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text(encoding="utf-8"))
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    (service,) = [each for each in kinds["Service"] if wanted <= each["metadata"]["labels"].items()]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert endpoint["scheme"] == "https" and endpoint["authorization"]["credentials"]["name"] == "curbstone-metrics"


def test_the_unit_waits_for_the_server_and_keeps_trying() -> None:
    """`systemctl start` returned before the server listened, and five quick failures ended it for good."""
    lines = UNIT.read_text(encoding="utf-8").splitlines()
    assert "Type=notify" in lines and "TimeoutStartSec=infinity" in lines
    assert "StartLimitIntervalSec=0" in lines and "Restart=on-failure" in lines
    assert f"RestartPreventExitStatus={WRONG}" in lines
