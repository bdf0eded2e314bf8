"""A web application that accepts orders. An order is on disk before the application answers; a worker does the rest.

uvicorn app:app          and in another terminal:    python worker.py
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from curbstone_client import Client, ClientError

client = Client(project="shop")  # CURBSTONE_URL, or a server on this machine


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    async with client:
        await client.declare("orders", max_tries=5, dead_letter="orders.dead")
        yield


class Order(BaseModel):
    total: int


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=202)
async def place(order: Order) -> dict[str, str]:
    try:
        stored = await client.queue("orders").publish(order.model_dump(), timeout=5)
    except ClientError as error:
        raise HTTPException(503, str(error)) from error
    return {"id": stored.id}
