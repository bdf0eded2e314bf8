"""Curbstone: a small durable message queue. The version lives here; the parts are the subpackages."""

__version__ = "0.4.0"
