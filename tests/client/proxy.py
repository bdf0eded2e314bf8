"""A TCP proxy that resets connections after so many bytes, or lets them hang half-open."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading

_LINGER_NONE = struct.pack("ii", 1, 0)


class Proxy:
    """Listens on a port of its own and passes on to `target`; connections are reset after a random number of bytes."""

    def __init__(self, target: tuple[str, int], dice: random.Random, bytes_max: int) -> None:
        self._target = target
        self._dice = dice
        self._bytes_max = bytes_max
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.resets = 0
        self.resets_left = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        # Wakes the thread that accepts, where closing alone would not.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                left = [self._dice.randrange(1, self._bytes_max)]
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=(*pair, left), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, left: list[int]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                left[0] -= len(data)
                if left[0] < 0 and self.resets_left > 0:
                    self.resets_left -= 1
                    self.resets += 1
                    target.sendall(data[: max(0, left[0] + len(data))])
                    for each in (source, target):
                        each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
                    break
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
