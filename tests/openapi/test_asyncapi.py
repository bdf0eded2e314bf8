"""The contract of the WebSockets and of STOMP is good AsyncAPI: AsyncAPI's own parser says so."""

from __future__ import annotations

import json

import pytest
import yaml

from tests.sdk.tools import FOLDER, MISSING, NODE_MODULES, ROOT, run

CONTRACT = ROOT / "openapi" / "asyncapi.yaml"
MISTAKES = [
    ("action: send", "action: sends", "action"),
    ('#/components/messages/Confirm"', '#/components/messages/Nothing"', "Nothing"),
    ("    protocol: ws\n", "", "protocol"),
]
"""What is right, what is wrong in its place, and a word of the complaint."""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """What the parser says of the contract, and of it with each mistake; it takes longer to start than to parse."""
    assert (NODE_MODULES / "@asyncapi" / "parser").exists(), f"the parser is not installed; {MISSING}"
    text = CONTRACT.read_text(encoding="utf-8")
    documents = [CONTRACT]
    for number, (right, wrong, _) in enumerate(MISTAKES):
        assert right in text
        documents.append(tmp_path_factory.mktemp("mistake") / f"{number}.yaml")
        documents[-1].write_text(text.replace(right, wrong, 1), encoding="utf-8")
    return [json.loads(line) for line in run("node", FOLDER / "asyncapi.mjs", *documents, cwd=FOLDER).splitlines()]


def test_the_contract_is_valid(said: list[list[str]]) -> None:
    operations = yaml.safe_load(CONTRACT.read_text(encoding="utf-8"))["operations"]
    assert said[0] == [f"AsyncAPI 3.0.0, operations: {len(operations)}"]


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistake_in_the_contract_is_found(said: list[list[str]], number: int) -> None:
    complaints, complaint = said[1 + number][:-1], MISTAKES[number][2]
    assert [text for text in complaints if complaint in text], said[1 + number]
