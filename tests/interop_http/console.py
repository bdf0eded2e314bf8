"""What tests do in the console: press, fill in, open."""

from __future__ import annotations

import json

from tests.kit.browser import Page


def press(page: Page, text: str) -> None:
    """Click the button with this text, of the dialog if one is open."""
    page.wait_for(
        f"(b => b && !b.disabled && (b.click(), true))([...(document.querySelector('dialog') ?? document)"
        f".querySelectorAll('button')].find(b => b.textContent === {json.dumps(text)}))"
    )


def fill(page: Page, selector: str, text: str) -> None:
    """Type into a field of the dialog."""
    page.wait_for(f"document.querySelector('dialog {selector}') !== null")
    page.evaluate(
        f"(field => {{ field.value = {json.dumps(text)};"
        f" field.dispatchEvent(new Event('input')) }})(document.querySelector('dialog {selector}'))"
    )


def open_queue(page: Page, name: str) -> None:
    """Follow the link to a queue."""
    page.wait_for(
        f"(a => a && (a.click(), true))([...document.querySelectorAll('a')]"
        f".find(a => a.textContent === {json.dumps(name)}))"
    )
    page.wait_for(f"document.querySelector('.bar h2').textContent.endsWith({json.dumps(name)})")


def noticed(page: Page, text: str) -> None:
    """Wait for a line at the bottom that ends so."""
    page.wait_for(f"document.getElementById('notice').textContent.endsWith({json.dumps(text)})")
