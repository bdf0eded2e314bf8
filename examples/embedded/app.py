"""A shop with its queues inside: one process, one port, no other server.

    uvicorn app:app

Orders are placed at /orders. Workers take them from the queue under /messaging, over HTTP or WebSocket.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI
from pydantic import BaseModel

from curbstone.asgi import create_app

ORDERS = "/v2/shop/queues/orders"

# Only this machine reaches the shop, so there are no logins. Elsewhere: create_app(users="users.toml").
queues = create_app(data=os.environ.get("SHOP_DATA", "curbstone-data"), insecure=True)
# The shop's own calls do not leave the process.
messaging = httpx.AsyncClient(transport=httpx.ASGITransport(queues), base_url="http://localhost")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with queues.lifespan(app), messaging:
        (await messaging.put(ORDERS, json={"lease": 60})).raise_for_status()
        yield


app = FastAPI(lifespan=lifespan)
app.mount("/messaging", queues)


class Order(BaseModel):
    id: int
    total: int


@app.post("/orders", status_code=202)
async def place(order: Order) -> Order:
    """Accept an order. It is on disk when this returns; the same order sent again is stored once."""
    reply = await messaging.post(
        f"{ORDERS}/messages", json=order.model_dump(), headers={"idempotency-key": f"order-{order.id}"}
    )
    reply.raise_for_status()
    return order
