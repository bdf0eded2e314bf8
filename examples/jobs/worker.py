"""Turns orders into invoices. The order is acked and the invoice published together, so each order has one invoice."""

import asyncio

from curbstone_client import Client, Message, Reject

client = Client(project="shop")


@client.worker("orders", parallel=10, timeout=60)
async def invoice(message: Message) -> None:
    order = message.json()
    if order["total"] < 0:
        raise Reject("an order has no negative total")
    async with client.transaction(message) as tx:
        tx.publish("invoices", {"order": message.id, "amount": order["total"]})


asyncio.run(client.run())
