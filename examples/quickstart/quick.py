"""Curbstone from Python, with its client: publish a message to a queue, take it, and ack it."""

from curbstone_client.sync import Client

with Client(project="demo") as client:  # CURBSTONE_URL, or a server on this machine
    queue = client.declare("hello-python")
    queue.publish("hello")  # on disk when it returns
    for message in queue.consume():
        with message:  # acked at the end of the block; the message is delivered again if the block raises
            print("got", message.text)
        break
