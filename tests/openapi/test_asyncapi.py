"""The contract of the WebSockets and of STOMP is good AsyncAPI: AsyncAPI's own parser says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.sdk.tools import FOLDER, MISSING, NODE_MODULES, ROOT, run

CONTRACT = ROOT / "openapi" / "asyncapi.yaml"


def check(document: Path) -> str:
    """Return what the parser says of a good document; AssertionError with all that is wrong in a bad one."""
    assert (NODE_MODULES / "@asyncapi" / "parser").exists(), f"the parser is not installed; {MISSING}"
    return run("node", FOLDER / "asyncapi.mjs", document, cwd=FOLDER)


def test_the_contract_is_valid() -> None:
    operations = yaml.safe_load(CONTRACT.read_text(encoding="utf-8"))["operations"]
    assert check(CONTRACT) == f"AsyncAPI 3.0.0, operations: {len(operations)}\n"


@pytest.mark.parametrize(
    ("right", "wrong", "complaint"),
    [
        ("action: send", "action: sends", "action"),
        ('#/components/messages/Confirm"', '#/components/messages/Nothing"', "Nothing"),
        ("    protocol: ws\n", "", "protocol"),
    ],
)
def test_a_mistake_in_it_would_be_found(tmp_path: Path, right: str, wrong: str, complaint: str) -> None:
    text = CONTRACT.read_text(encoding="utf-8")
    assert right in text
    broken = tmp_path / "asyncapi.yaml"
    broken.write_text(text.replace(right, wrong, 1), encoding="utf-8")
    with pytest.raises(AssertionError, match=complaint):
        check(broken)
