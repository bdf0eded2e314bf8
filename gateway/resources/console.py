"""The console: a page for a browser that shows the queues and looks after them.

It uses nothing but the public interface, so whoever may not call that can do nothing here either.
"""

from __future__ import annotations

from curbstone.gateway.http.static import StaticPage

CONSOLE = StaticPage(
    "console",
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:;"
    " require-trusted-types-for 'script'; trusted-types 'none'; base-uri 'none'; form-action 'self';"
    " frame-ancestors 'none'",
)
