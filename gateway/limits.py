"""Every bound of the gateway: of heads, bodies, waiting and windows. docs/limits.md says what happens beyond each.

How many connections there may be is `net`'s to say, what a queue takes are its options; what can be set is in
`settings`.
"""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB

# ---------------------------------------------------------------- connections and heads

HEAD_BYTES_MAX = 64 * KIB
"""The most a request line and its headers may take."""

HEAD_FIELDS_MAX = 128
"""The most header fields a request may have."""

HEAD_S_MAX = 10
"""How long a request's head may take to come; also how long a new connection may stay silent."""

KEEP_ALIVE_S = 75
"""How long a connection may wait for another request."""

SECRET_BYTES_MAX = 8 * KIB
"""The longest credentials in a head that are looked at."""

PARAMETERS_MAX = 50
"""The most parameters of a query."""

LINGER_S_MAX = 5
"""How long a client may take to see that its request was answered or refused before all of it had come."""

LINGER_BYTES_MAX = 16 * MIB
"""The most that is read, and dropped, in that time."""

STOP_S_MAX = 5
"""How long clients may take to finish when the server stops."""

# ---------------------------------------------------------------- bodies

BODY_S_MAX = 60
"""How long a request's body may take."""

SKIP_BYTES_MAX = 64 * KIB
"""If no more than this is left of a body that nobody wants, it is skipped and the connection goes on."""

METADATA_BYTES_MAX = 32 * KIB
"""The most a message's metadata may take, as a header block."""

BATCH_MESSAGES_MAX = 10_000
"""The most messages of a batch."""

VALUES_MAX = 250_000
"""The most values a JSON text may have: members of objects and elements of arrays, all of them together."""

DEPTH_MAX = 100
"""How deep arrays and objects of JSON may lie in each other."""

LOGIN_BYTES_MAX = 16 * KIB
"""The largest body of a call about tickets and tokens."""

BACKUP_LIST_BYTES_MAX = 32 * MIB
"""The longest list of files that a client says it has, who asks for a backup."""

# ---------------------------------------------------------------- answers

COUNT_MAX = 1000
"""The most messages of a lease or a peek."""

PEEK_BYTES_MAX = 8 * MIB
"""An answer to a peek holds no more bodies than until here, but at least one message."""

PAGE_MESSAGES_MAX = 100_000
"""The most messages, or events, of a page of `…/browse` and `…/journal`."""

PAGE_BYTES_MAX = 16 * MIB
"""The most bytes of such a page."""

# ---------------------------------------------------------------- waiting

WAIT_S_MAX = 30
"""How long a call may wait; what asks for longer waits so long."""

LEASE_S_MAX = 7 * 86400
"""The longest lease."""

SECONDS_MAX = 10 * 365 * 86400
"""The longest duration of any other kind, such as a delay or the life of a token."""

CLOSED_STREAMS_MAX = 10_000
"""Of so many streams of events that ended it is known what their clients have not seen."""

# ---------------------------------------------------------------- WebSockets

MESSAGE_S_MAX = 30
MESSAGE_BYTES_PER_S = KIB
"""A message that began must be whole in so many seconds, or go on coming at that rate."""

WINDOW_MAX = 100_000
"""The largest window of a consumer."""

SUBSCRIPTIONS_MAX = 1_000
"""The most subscriptions of one socket for several queues."""

UNREAD_BYTES_MAX = 4 * MIB
"""Such a socket is not read while so much waits for its peer to read."""

UNCONFIRMED_MAX = 20_000
UNCONFIRMED_BYTES_MAX = 16 * MIB
"""Above one of these a socket that publishes is not read until half of it is confirmed."""

PING_AFTER_S = 30
"""After so long without a word from the peer it is asked for one."""

DEAD_AFTER_S = 90
"""After so long without a word, or without reading anything of what waits for it, it is taken for gone, and its
unsettled messages go back."""

CLOSE_S_MAX = 5
"""How long the peer may take to answer a close frame."""
