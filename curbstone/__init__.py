"""Curbstone: a small durable message queue."""

__version__ = "0.5.1"
