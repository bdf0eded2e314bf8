"""Curbstone from Python, with its client: make a queue, put a message in, take it and say that it is done."""

from curbstone_client.sync import Client

with Client(project="demo") as client:  # CURBSTONE_URL, or a server on this machine
    queue = client.declare("hello-python")
    queue.publish("hello")  # on disk when it returns
    for message in queue.consume():
        with message:  # acked at the end of the block; it comes again if that raises
            print("got", message.text)
        break
