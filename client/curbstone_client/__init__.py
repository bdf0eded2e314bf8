"""The Python client of Curbstone. This package is the client for asyncio, `curbstone_client.sync` the one for threads.

The core has no sockets: `link.py` (one connection with reconnects), `publishing.py` and `consuming.py` (the two uses of
a connection), `wire.py` and `websocket.py` (encodings). `aio*.py` and `sync*.py` are two shells around it.
"""

from curbstone_client.aio import Client
from curbstone_client.aio_messages import Batch, Batches, Confirm, Ended, Message, Messages
from curbstone_client.aio_queue import Event, Queue, Transaction
from curbstone_client.base import Stats
from curbstone_client.errors import (
    CantConnect,
    ClientError,
    Closed,
    NoSuchQueue,
    NotAllowed,
    NotSupported,
    QueueFull,
    Refused,
    Reject,
    Retry,
    Stale,
    TooLarge,
    Unknown,
)
from curbstone_client.publishing import Stored

__version__ = "0.5.1"

__all__ = [
    "Batch",
    "Batches",
    "CantConnect",
    "Client",
    "ClientError",
    "Closed",
    "Confirm",
    "Ended",
    "Event",
    "Message",
    "Messages",
    "NoSuchQueue",
    "NotAllowed",
    "NotSupported",
    "Queue",
    "QueueFull",
    "Refused",
    "Reject",
    "Retry",
    "Stale",
    "Stats",
    "Stored",
    "TooLarge",
    "Transaction",
    "Unknown",
]
