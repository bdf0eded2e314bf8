"""A web application that takes orders: they are on disk before it answers, and a worker does the rest.

uvicorn app:app          and, beside it:    python worker.py
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from curbstone_client import Client, ClientError

client = Client(project="shop")  # CURBSTONE_URL, or a server on this machine


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    async with client:
        await client.declare("orders", max_tries=5, dead_letter="orders.dead")
        yield


async def place(request: Request) -> JSONResponse:
    try:
        stored = await client.queue("orders").publish(await request.json(), timeout=5)
    except ClientError as error:
        return JSONResponse({"error": str(error)}, 503)
    return JSONResponse({"id": stored.id}, 202)


app = Starlette(routes=[Route("/orders", place, methods=["POST"])], lifespan=lifespan)
