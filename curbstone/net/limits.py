"""The bounds that all protocols share: connections, greetings, output, and unfinished messages.

docs/limits.md says what happens when each is exceeded.
"""

from __future__ import annotations

BACKLOG = 1024
"""How many connections may wait in the kernel to be accepted."""

RESERVE = 4
"""How many connections beyond the limit may still come, to ask for health only."""

GREETING_S_MAX = 10
"""How long a connection may take for its PROXY header and TLS handshake together."""

PROXY_HEADER_BYTES_MAX = 4096

KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""TCP keep-alive, in seconds and probes: when a peer that vanished silently is given up, if the system supports it."""

RETRANSMITS_MAX = 8
"""The count of retransmissions at which a peer counts as vanished. The kernel waits twice as long before each."""

BUFFERED_BYTES_MAX = 256 * 1024 * 1024
"""The most bytes of unfinished input and unread output that all connections together hold, without `--max-buffered`."""

UNREAD_S_MAX = 60
"""How long a peer may read nothing of the output that waits for it."""

WRITE_BUFFER_BYTES = 256 * 1024
"""Unsent output, in bytes, at which deliveries to the connection pause."""

TURN_OUTPUT_BYTES_MAX = 1024 * 1024
"""Output of one turn beyond which it is sent at once and not at the end of the turn. Otherwise the deliveries of many
queues in one turn would take too much memory."""

LINGER_S = 2.0
"""How long a client has to read the last output and close; see `Linger`."""

STOP_S = 5.0
"""How long a stopping server waits for its clients to leave before it aborts their connections."""
