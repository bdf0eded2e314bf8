"""The environment variables that stand in for options."""

from __future__ import annotations

SERVER_VARIABLE = "CURBSTONE_SERVER"
TOKEN_VARIABLE, TOKEN_FILE_VARIABLE = "CURBSTONE_TOKEN", "CURBSTONE_TOKEN_FILE"
"""A token for a server that has users; the file wins. No option takes a secret: others can read a command line."""
CA_FILE_VARIABLE, CERT_FILE_VARIABLE = "CURBSTONE_CA_FILE", "CURBSTONE_CERT_FILE"
"""Who signed the server's certificate, where the system does not know; and a certificate of one's own with its key."""
