"""The console: a page for a browser that shows the queues and looks after them.

It uses nothing but the public interface, so whoever may not call that can do nothing here either.
"""

from __future__ import annotations

from curbstone.gateway.http.static import StaticPage

CONSOLE = StaticPage(
    "console", b"default-src 'self'; img-src data:; object-src 'none'; base-uri 'none'; frame-ancestors 'none'"
)
