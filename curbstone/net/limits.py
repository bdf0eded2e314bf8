"""The limits that all protocols share; docs/limits.md says what happens when each is exceeded."""

from __future__ import annotations

BACKLOG = 1024
"""How many connections may wait in the kernel to be accepted."""

RESERVE = 4
"""How many connections beyond the limit are accepted to check the health only."""

GREETING_S_MAX = 10
"""The deadline for the PROXY header and the TLS handshake together."""

PROXY_HEADER_BYTES_MAX = 4096

KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""TCP keep-alive, in seconds and probes, if the system supports it."""

RETRANSMITS_MAX = 8
"""The number of retransmissions after which a peer counts as vanished. The kernel doubles the wait before each."""

BUFFERED_BYTES_MAX = 256 * 1024 * 1024
"""The default of `--max-buffered`: the most bytes of unfinished input and unread output of all connections together."""

UNREAD_S_MAX = 60
"""How long a peer may leave its output unread."""

WRITE_BUFFER_BYTES = 256 * 1024
"""Unsent output, in bytes, at which deliveries to the connection pause."""

TURN_OUTPUT_BYTES_MAX = 1024 * 1024
"""Output of one turn above this size is sent at once and not at the end of the turn, so that the deliveries of many
queues in one turn do not take too much memory."""

LINGER_S = 2.0
"""How long a client has to read the last output and close the connection."""

STOP_S = 5.0
"""How long a stopping server waits for its clients to leave before it aborts their connections."""
