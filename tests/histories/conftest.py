"""Fixtures: a real RabbitMQ node."""

from __future__ import annotations

from tests.engines.conftest import node_url

__all__ = ["node_url"]
