"""What runs the server elsewhere: image, compose file, unit, manifests. Each is read by its own tool, or by its schema.

No container engine and no cluster is needed, so none of them is started here; docs/install.md says so.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from curbstone.cli.connection import CONTEXT_VARIABLE, VARIABLES
from tests.ops_tools import ROOT, needs_ops_tools, run
from tests.server import clean_environment
from tests.wheel import copy_of_the_checkout

DEPLOY = ROOT / "deploy"
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
UNIT = DEPLOY / "systemd" / "curbstone.service"

IGNORED = {line for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line.isidentifier()}
IGNORED |= {"curbstone-data"}

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")


def documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def settings_in(text: str) -> set[str]:
    of_clients = {CONTEXT_VARIABLE, *VARIABLES.values()}
    return set(re.findall(r"\bCURBSTONE_[A-Z_]+\b", text)) - of_clients


def test_every_setting_that_is_named_exists() -> None:
    from curbstone.settings import Settings

    known = {f"CURBSTONE_{name.upper()}" for name in Settings.model_fields}
    for path in DEPLOY.rglob("*"):
        if path.is_file():
            assert settings_in(path.read_text(encoding="utf-8")) <= known, path


@needs_ops_tools
def test_the_dockerfile_passes_a_linter() -> None:
    run("hadolint", DOCKERFILE)


def test_the_image_is_made_of_all_that_ships() -> None:
    """A folder that .dockerignore leaves out would be missing from the image, and nobody would see it here."""
    folders = {path.resolve().name for path in (ROOT / "curbstone").iterdir() if path.is_symlink()}
    needed = {"curbstone", "deploy", "pyproject.toml", "constraints.txt", "README.md", "LICENSE"}
    assert not IGNORED & (folders | needed)


def test_the_image_runs_as_a_user_that_owns_nothing_but_its_data() -> None:
    text = DOCKERFILE.read_text(encoding="utf-8")
    final = text.rpartition("\nFROM ")[2]
    assert re.search(r"^USER 10001:10001$", final, re.M)
    assert "HEALTHCHECK" in final
    assert final.index("COPY") < final.index("USER"), "what is installed belongs to root"


@pytest.mark.soak
def test_the_steps_of_the_image_give_a_server(tmp_path: Path) -> None:
    """The script that installs into the image, run on what the image is made of, and the command it starts."""
    source = copy_of_the_checkout(tmp_path)
    for name in IGNORED:
        shutil.rmtree(source / name, ignore_errors=True)
    target = tmp_path / "opt" / "curbstone"
    subprocess.run([source / "deploy" / "docker" / "install.sh", source, target], check=True)
    shutil.rmtree(source)
    assert not (target / "bin" / "pip").exists()
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


def test_the_compose_file_mounts_what_is_there() -> None:
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


@needs_systemd
def test_systemd_reads_the_unit_and_finds_it_closed(tmp_path: Path) -> None:
    command = tmp_path / "curbstone"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    unit = tmp_path / "curbstone.service"
    text = UNIT.read_text(encoding="utf-8").replace("/opt/curbstone/bin/curbstone serve", f"{command} serve")
    unit.write_text(re.sub(r"^Documentation=.*\n", "", text, flags=re.M))  # the page is not installed here
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    judged = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=15", unit], capture_output=True, text=True
    )
    assert judged.returncode == 0, judged.stdout


@needs_systemd
def test_the_unit_allows_the_calls_by_which_a_server_learns_its_limits() -> None:
    """The group @resources also forbids to read the limit of open files."""
    filters = re.findall(r"^SystemCallFilter=~(.*)$", UNIT.read_text(encoding="utf-8"), re.M)
    for group in " ".join(filters).split():
        calls = subprocess.run(["systemd-analyze", "syscall-filter", group], capture_output=True, text=True, check=True)
        assert not {"prlimit64", "getrlimit", "fdatasync", "flock"} & set(calls.stdout.split())


@needs_ops_tools
def test_the_manifests_follow_kubernetes_schemas() -> None:
    run("kubernetes-validate", "--strict", DEPLOY / "kubernetes" / "curbstone.yaml")


def test_the_manifests_fit_together() -> None:
    by_kind: dict[str, list[Any]] = {}
    for document in documents(DEPLOY / "kubernetes" / "curbstone.yaml"):
        by_kind.setdefault(document["kind"], []).append(document)
    (stateful,) = by_kind["StatefulSet"]
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    assert stateful["spec"]["replicas"] == 1
    assert stateful["spec"]["serviceName"] in {service["metadata"]["name"] for service in by_kind["Service"]}
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for service in by_kind["Service"]:
        assert service["spec"]["selector"].items() <= labels.items()
        assert {port["targetPort"]: port["port"] for port in service["spec"]["ports"]}.items() <= ports.items()
    for kind in ("NetworkPolicy", "PodDisruptionBudget"):
        (one,) = by_kind[kind]
        assert (one["spec"].get("selector") or one["spec"]["podSelector"])["matchLabels"].items() <= labels.items()
    (claim,) = stateful["spec"]["volumeClaimTemplates"]
    assert [mount["name"] for mount in container["volumeMounts"]] == [claim["metadata"]["name"]]
