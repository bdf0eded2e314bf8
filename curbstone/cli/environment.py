"""The environment variables that stand in for options."""

from __future__ import annotations

SERVER_VARIABLE = "CURBSTONE_SERVER"
TOKEN_VARIABLE, TOKEN_FILE_VARIABLE = "CURBSTONE_TOKEN", "CURBSTONE_TOKEN_FILE"
"""A token for a server that has users, or a file with it; the file has precedence.

No option takes a secret, because other users of the machine can read a command line.
"""
CA_FILE_VARIABLE, CERT_FILE_VARIABLE = "CURBSTONE_CA_FILE", "CURBSTONE_CERT_FILE"
"""The authority that signed the server's certificate, if the system does not know it; and a certificate for TLS."""
