"""Object stores by URL: S3 and compatible ones, Google Cloud Storage, Azure. Credentials come from the environment."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from typing import Any

from obstore.exceptions import BaseError
from obstore.store import ObjectStore, from_url

from curbstone.standby.part_store import WrongStore

_STATUS = re.compile(r"(.* status code: (\d{3})[\w ]*)")
"""The part of an error up to the status of the reply; the body may follow."""
_FINAL_STATUSES = {"301", "400", "401", "403", "404"}
_CODE = re.compile(r"<Code>(\w+)</Code>")


def open_store(url: str, timeout_s: float, max_retries: int) -> ObjectStore:
    """Return the store at a URL. Raise OSError if its configuration in the environment is incomplete."""
    options: dict[str, Any] = {"timeout": f"{timeout_s:g}s", "connect_timeout": f"{min(timeout_s, 10):g}s"}
    if os.environ.get("AWS_ALLOW_HTTP", "").lower() == "true":
        options["allow_http"] = True
    retries: Any = {"max_retries": max_retries, "retry_timeout": timedelta(seconds=timeout_s)}
    try:
        return from_url(url, client_options=options, retry_config=retries)
    except BaseError as error:
        raise WrongStore(str(as_os_error(error))) from None


def as_os_error(error: Exception) -> OSError:
    """Return an error as one line, without the library's debugging output and the body of the reply.

    It is a WrongStore if the store has replied that it does not exist, or that the credentials are insufficient.
    """
    text = str(error)
    line = text.partition("\n")[0]
    if (reply := _STATUS.match(line)) is None:
        return OSError(line)
    code = _CODE.search(text)
    line = reply[1] + (f" ({code[1]})" if code is not None else "")
    return WrongStore(line) if reply[2] in _FINAL_STATUSES else OSError(line)
