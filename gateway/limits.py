"""The bounds of the gateway: heads, bodies, waiting and windows. docs/limits.md says what happens when one is exceeded.

`net` bounds the number of connections, and a queue's options bound its size. `settings` has the bounds that can be
changed.
"""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB

# ---------------------------------------------------------------- connections and heads

HEAD_BYTES_MAX = 64 * KIB
"""The largest request line together with its headers."""

HEAD_FIELDS_MAX = 128
"""The most header fields a request may have."""

HEAD_S_MAX = 10
"""How long a request's head may take to arrive, and how long a new connection may stay silent."""

KEEP_ALIVE_S = 75
"""How long an idle connection stays open for another request."""

SECRET_BYTES_MAX = 8 * KIB
"""The longest credentials in a head that are examined."""

PARAMETERS_MAX = 50
"""The most parameters a query may have."""

LINGER_S_MAX = 5
"""How long a client has to read an answer that was sent before its request was complete."""

LINGER_BYTES_MAX = 16 * MIB
"""The most input that is read and dropped during that time."""

STOP_S_MAX = 5
"""How long clients may take to finish when the server stops."""

FOLLOWERS_STOP_S_MAX = 0.5
"""How long followers may then take to receive the rest."""

# ---------------------------------------------------------------- bodies

BODY_S_MAX = 60
"""How long a request's body may take to arrive."""

UNREAD_BODY_BYTES = 64 * KIB
"""Reading stops while more than this of a request's body waits for the application."""

SKIP_BYTES_MAX = 64 * KIB
"""If at most this much is left of an unwanted body, it is read and dropped, and the connection stays open."""

METADATA_BYTES_MAX = 32 * KIB
"""The largest metadata of a message, as a header block."""

BATCH_MESSAGES_MAX = 10_000
"""The most messages in a batch."""

VALUES_MAX = 250_000
"""The most values in a JSON text: the members of all objects and the elements of all arrays together."""

DEPTH_MAX = 100
"""How deep arrays and objects in JSON may be nested."""

LOGIN_BYTES_MAX = 16 * KIB
"""The largest body of a request about sessions, tickets or tokens."""

BACKUP_LIST_BYTES_MAX = 32 * MIB
"""The largest body of a request for a backup, which lists the client's files."""

# ---------------------------------------------------------------- answers

COUNT_MAX = 1000
"""The most messages in a lease or a peek."""

PEEK_BYTES_MAX = 8 * MIB
"""The most bytes of messages in the answer to a peek, which has at least one message."""

SCAN_BYTES_MAX = 16 * MIB
"""The most bytes that a search, or a peek with a filter, scans."""

SCAN_MESSAGES_MAX = 100_000
"""The most messages that a peek or a search with a filter scans; fewer if the filter is costly."""

PAGE_MESSAGES_MAX = 100_000
"""The most messages or events in a page of `…/browse` or `…/journal`."""

PAGE_BYTES_MAX = 16 * MIB
"""The most bytes in such a page."""

# ---------------------------------------------------------------- waiting

ANSWER_WAIT_S_MAX = 10
"""How long a request waits for room for its answer while its user's connections hold too much unread output."""

WAIT_S_MAX = 30
"""How long a request may wait. A request that asks for longer waits this long."""

LEASE_S_MAX = 7 * 86400
"""The longest lease."""

SECONDS_MAX = 10 * 365 * 86400
"""The longest duration of any other kind, such as a delay or the lifetime of a token."""

CLOSED_STREAMS_MAX = 10_000
"""The most event streams that are remembered after their end, so that messages their clients have not seen can be
requeued."""

# ---------------------------------------------------------------- WebSockets

MESSAGE_S_MAX = 30
MESSAGE_BYTES_PER_S = KIB
"""A message must be complete within these seconds, or keep arriving at this rate."""

WINDOW_MAX = 100_000
"""The largest window of a consumer."""

SUBSCRIPTIONS_MAX = 1_000
"""The most subscriptions on one socket for several queues."""

UNREAD_BYTES_MAX = 4 * MIB
"""Reading such a socket stops while more unsent output than this waits."""

UNCONFIRMED_MAX = 20_000
UNCONFIRMED_BYTES_MAX = 16 * MIB
"""Beyond either of these, reading a publishing socket stops until half of it is confirmed."""

PING_AFTER_S = 30
"""The server pings a peer after this long without input from it."""

DEAD_AFTER_S = 90
"""The server closes a connection after this long without input; its unsettled messages are requeued."""

CLOSE_S_MAX = 5
"""How long the peer may take to answer a close frame."""
