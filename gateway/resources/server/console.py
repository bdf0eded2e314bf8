"""The console: a page for browsers that shows and manages the queues.

It uses only the public interface, so it gives nobody more rights than they have there.
"""

from __future__ import annotations

from curbstone.gateway.http.static import StaticPage

CONSOLE = StaticPage(
    "console",
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src 'self';"
    " require-trusted-types-for 'script'; trusted-types 'none'; base-uri 'none'; form-action 'self';"
    " frame-ancestors 'none'",
)
