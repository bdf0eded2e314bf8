"""The certificates of the listeners: read at the start, and again when their files change."""

from __future__ import annotations

import logging

from curbstone.access.reloading import Reloading, Reloads
from curbstone.core.errors import Unavailable
from curbstone.core.host import Host
from curbstone.net import certificates
from curbstone.net.certificates import BadCertificate, Certificates
from curbstone.settings import Settings

log = logging.getLogger("curbstone")


def certificates_of(host: Host, settings: Settings, reloads: Reloads) -> Certificates | None:
    """Read the certificate, if there is one. It is read again when it changes or a reload is requested."""
    files = settings.certificate_files
    if files is None:
        return None
    try:
        found = Certificates(files)
    except BadCertificate as error:
        raise Unavailable(f"TLS can't be used: {error}") from error
    if certificates.readable_by_others(files):
        log.warning("any user of this machine can read the key in %s", files.key or files.certificate)
    reloads.add(Reloading(host, "TLS certificate", files.paths, lambda: certificates.load(files), found.take))
    return found
