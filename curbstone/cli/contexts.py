"""Named contexts, each with a server and a login, in a file of the user. It has no secrets, only names of files."""

from __future__ import annotations

import json
import os
from pathlib import Path

from curbstone.exit_codes import WRONG, CommandFailed

MEMBERS = ("server", "token_file", "ca_file", "cert_file")


class Contexts:
    """The contexts of a user, and which of them is the current one."""

    def __init__(self, file: Path, contexts: dict[str, dict[str, str]], current: str) -> None:
        self.file = file
        self.contexts = contexts
        self.current = current

    @classmethod
    def read(cls) -> Contexts:
        """Read the user's file; without one there are no contexts. Raise CommandFailed if it can't be read."""
        base = os.environ.get("XDG_CONFIG_HOME")
        file = (Path(base) if base else Path("~/.config").expanduser()) / "curbstone" / "contexts.json"
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            contexts = {
                str(name): {member: str(values[member]) for member in MEMBERS if member in values}
                for name, values in found["contexts"].items()
            }
            return cls(file, contexts, str(found.get("current", "")))
        except (FileNotFoundError, NotADirectoryError):
            return cls(file, {}, "")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or "this is not a file of contexts; repair or remove it"
            raise CommandFailed(f"can't read {file}: {reason}", WRONG) from None

    def write(self) -> None:
        """Replace the file."""
        new = self.file.with_name(self.file.name + ".new")
        try:
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            new.touch(mode=0o600)
            new.write_text(json.dumps({"current": self.current, "contexts": self.contexts}, indent=2) + "\n", "utf-8")
            new.replace(self.file)
        except OSError as error:
            raise CommandFailed(f"can't write {self.file}: {error.strerror}", WRONG) from None

    def named(self, name: str) -> dict[str, str]:
        """Return the settings of a context. Raise CommandFailed if it does not exist."""
        if name not in self.contexts:
            known = ", ".join(sorted(self.contexts)) or "none yet; see curbstone context add"
            raise CommandFailed(f"no context {name!r}; known contexts: {known}", WRONG)
        return dict(self.contexts[name])

    def in_use(self) -> dict[str, str]:
        """Return the settings of the current context, or {} if there is none."""
        return dict(self.contexts.get(self.current, {}))
