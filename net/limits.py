"""Every bound of what all protocols have in common: connections, greetings, output, and messages that are not whole.

docs/limits.md says what happens beyond each.
"""

from __future__ import annotations

BACKLOG = 1024
"""How many connections wait in the kernel to be accepted."""

SPARES = 4
"""Connections beyond the most there may be, on which health alone is told."""

GREETING_S_MAX = 10
"""How long a connection may take until the PROXY header has come and hands are shaken."""

PROXY_HEADER_BYTES_MAX = 4096

KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""Seconds and probes after which a peer that vanished without a word is given up, where the system can."""

RETRANSMITS_MAX = 8
"""What was sent again so often, each time after twice as long, will not arrive."""

UNFINISHED_BYTES_MAX = 64 * 1024 * 1024
"""What all connections of a server together hold of large messages that are not whole, or twice the largest message
where that is more."""

WRITE_BUFFER_BYTES = 256 * 1024
"""Unsent output at which consumers are held."""

TURN_OUTPUT_BYTES_MAX = 1024 * 1024
"""More output of one turn than that does not wait for its end: what many queues deliver together is soon too much."""

LINGER_S = 2.0
"""How long a client gets after the last of the output to read it and close; see `Linger`."""

STOP_S = 5.0
"""How long a server that stops waits for its clients to go before it cuts them off."""
