"""Keeps pytest from taking what other tools load here for tests."""

from __future__ import annotations

collect_ignore = ["roundtrip.py", "schemathesis_hooks.py"]
