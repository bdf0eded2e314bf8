"""An authenticator with users in front of a simulated engine, whose clock is the tests'."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from argon2 import PasswordHasher

from curbstone.access.authorization import AuthorizedBroker
from curbstone.access.caller import Caller, Credentials
from curbstone.access.secrets import Secret
from curbstone.access.user_authenticator import UserAuthenticator
from curbstone.core.disk import OsDisk
from curbstone.core.errors import CurbstoneError
from tests.kit.lab import Lab

HERE = Caller("127.0.0.1", 1, "http")


@cache
def hashed(password: str) -> str:
    """Return a hash that is checked as any other, only cheaper: a hash says itself what it costs."""
    return PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(password)


class World:
    def __init__(self, path: Path, users: str, lab: Lab | None = None) -> None:
        self.lab = lab or Lab()
        self.file = path / "users.toml"
        self.data = path / "data"
        self.data.mkdir(exist_ok=True)
        self.write(users)
        disk = OsDisk(self.data, is_shared=True)  # tests make a second world of the directory
        self.authenticator = UserAuthenticator(self.lab.broker, self.lab.host, self.file, self.data, disk)
        self.authenticator.open()

    def write(self, users: str) -> None:
        self.file.write_text(users, encoding="utf-8")

    def reload(self, users: str) -> CurbstoneError | None:
        self.write(users)
        answers: list[CurbstoneError | None] = []
        self.authenticator.reload(answers.append)
        self.lab.settle()
        return answers[0]

    def login(self, user: str = "", secret: str = "", caller: Caller = HERE) -> AuthorizedBroker:
        """Return what a client gets; raise what it is told."""
        answers: list[AuthorizedBroker | CurbstoneError] = []
        self.authenticator.admit(Credentials(user, secret), caller, answers.append)
        self.lab.settle()
        [answer] = answers
        if isinstance(answer, CurbstoneError):
            raise answer
        return answer

    def token(
        self, access: AuthorizedBroker, user: str = "", grants: list[str] | None = None, expires_ms: int = 0
    ) -> Secret:
        answers: list[CurbstoneError | None] = []
        user = user or access.identity.user
        secret, _ = self.authenticator.make_token(
            access, user=user, grants=grants, expires_ms=expires_ms, label="", on_done=answers.append
        )
        self.lab.settle()
        assert answers == [None]
        return secret
