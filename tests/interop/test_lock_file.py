"""The npm packages of this folder: pinned, and fetched from whatever registry the machine is set up for."""

from __future__ import annotations

import json
from pathlib import Path

HERE = Path(__file__).resolve().parent


def test_lock_file_pins_everything_and_names_no_registry() -> None:
    text = (HERE / "package-lock.json").read_text(encoding="utf-8")
    packages = {name: entry for name, entry in json.loads(text)["packages"].items() if name}
    assert all(entry["version"] and entry["integrity"] for entry in packages.values())
    assert "resolved" not in text
    wanted = json.loads((HERE / "package.json").read_text(encoding="utf-8"))["dependencies"]
    assert {f"node_modules/{name}": version for name, version in wanted.items()}.items() <= {
        name: entry["version"] for name, entry in packages.items()
    }.items()
