"""Generates the Python and the TypeScript client from openapi/openapi.yaml, into the given folder.

`make sdk` runs it, in the environment of tools/sdk/requirements.txt and with the npm packages of this folder.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import templates
import yaml

HERE = Path(__file__).resolve().parent
CONTRACT = HERE.parent.parent / "openapi" / "openapi.yaml"

# Media types that openapi-python-client ignores or generates broken code for: any type, a second list or file as body.
NOT_FOR_PYTHON = ("*/*", "application/cloudevents-batch+json", "application/vnd.curbstone.batches")


def main(out: Path) -> None:
    """Replace both clients in `out`."""
    out.mkdir(parents=True, exist_ok=True)
    make_python(out)
    make_typescript(out)
    print(
        f"Python: import curbstone_http, after pip install {out / 'python'}\n"
        f"TypeScript: import {{curbstone}} from 'curbstone-http', after npm install {out / 'typescript'}\n"
        "The README.md in each folder shows how to use it."
    )


def make_python(out: Path) -> None:
    """Generate the package curbstone_http in python/."""
    contract = out / "openapi-for-python.json"
    contract.write_text(json.dumps(for_python(yaml.safe_load(CONTRACT.read_text(encoding="utf-8")))), encoding="utf-8")
    tools = Path(sys.executable).parent  # the generator looks for ruff on the PATH
    environment = os.environ | {"PATH": f"{tools}{os.pathsep}{os.environ.get('PATH', '')}"}
    templates.write(out / "templates-for-python")
    command = [tools / "openapi-python-client", "generate", "--path", contract]
    options = ["--output-path", out / "python", "--overwrite", "--meta", "setup", "--fail-on-warning"]
    options += ["--custom-template-path", out / "templates-for-python"]
    subprocess.run([*command, *options, "--config", HERE / "python.yaml"], check=True, env=environment)
    (out / "python" / "curbstone_http" / "py.typed").touch()


def for_python(contract: dict[str, Any]) -> dict[str, Any]:
    """Return the contract without the bodies that the generator can't handle."""
    for item in contract["paths"].values():
        for operation in item.values():
            bodies = [operation.get("requestBody", {})] if isinstance(operation, dict) else []
            answers = operation.get("responses", {}).values() if isinstance(operation, dict) else ()
            for holder in (*bodies, *answers):
                for media in NOT_FOR_PYTHON:
                    holder.get("content", {}).pop(media, None)
    return contract


def make_typescript(out: Path) -> None:
    """Generate and compile the package curbstone-http in typescript/: types from the contract, and openapi-fetch."""
    folder = out / "typescript"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(HERE / "typescript", folder)
    command = HERE / "node_modules" / ".bin" / "openapi-typescript"
    subprocess.run([command, CONTRACT, "--output", folder / "schema.d.ts"], check=True)
    modules = folder / "node_modules"
    modules.symlink_to(HERE / "node_modules")
    try:
        subprocess.run([modules / ".bin" / "tsc"], check=True, cwd=folder)
    finally:
        modules.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
