"""The numbers of docs/limits.md, from the constants of the code. `docs_tables.py` writes them into the page."""

from __future__ import annotations

import re

from curbstone import schemas
from curbstone.access import connections
from curbstone.core import conditions, filters, options, values
from curbstone.core.engine.delivery import pull
from curbstone.core.engine.facts.kinds import KINDS
from curbstone.core.engine.index import dynamic_groups as undeclared
from curbstone.core.engine.log.format import Note
from curbstone.core.schemas import AT_ONCE_MS
from curbstone.core.staging import staging
from curbstone.core.transactions import transaction, tx_log
from curbstone.gateway import limits, settings
from curbstone.gateway.resources.metrics import chart_file, metrics, stats_history
from curbstone.gateway.resources.reading import search
from curbstone.mqks import limits as mqks
from curbstone.net import budget
from curbstone.net import limits as net
from curbstone.schema_process import CPU_S_MAX
from curbstone.settings import MESSAGE_BYTES_MAX, Settings
from curbstone.stomp import limits as stomp

DEFAULTS = Settings()


def size(count: int) -> str:
    """Return bytes as the page writes them."""
    units = ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while count >= 1024:
        count //= 1024
        del units[0]
    return f"{count} {units[0]}"


TEXTS = (
    f"`--max-message-size`, {size(DEFAULTS.max_message_size)}; an option of each queue, at most "
    + size(MESSAGE_BYTES_MAX),
    f"| {size(limits.METADATA_BYTES_MAX)} as the queue keeps it",
    f"`--cap`, {size(DEFAULTS.cap)}; an option of each queue, {size(options.CAP_BYTES_MIN)} to "
    + f"`--max-cap`, {size(DEFAULTS.max_cap)}",
    f"declared groups of a queue | {options.GROUPS_MAX} |",
    f"pending, or a client that waits | {undeclared.UNDECLARED_MAX} |",
    f"`--max-ttl`, {DEFAULTS.max_ttl / 3600:g} h",
    f"lease | {limits.LEASE_S_MAX // 86400} days",
    f"{size(limits.HEAD_BYTES_MAX)}, {limits.HEAD_FIELDS_MAX} fields, {limits.HEAD_S_MAX} s",
    f"body under way | {limits.BODY_S_MAX} s",
    f"handshake | {net.GREETING_S_MAX} s together; a PROXY header has {size(net.PROXY_HEADER_BYTES_MAX)} at most",
    f"parameters of a query | {limits.PARAMETERS_MAX} |",
    f"{size(limits.SKIP_BYTES_MAX)} are skipped; of a larger one {size(limits.LINGER_BYTES_MAX)} in "
    f"{limits.LINGER_S_MAX} s",
    f"idle connection | {limits.KEEP_ALIVE_S} s",
    f"{size(settings.GatewaySettings().json_bytes_max)}, or {settings.JSON_GROWTH_MAX} times",
    f"{limits.VALUES_MAX:,} values, nested {limits.DEPTH_MAX} deep",
    f"messages of a batch | {limits.BATCH_MESSAGES_MAX:,} |",
    f"{limits.COUNT_MAX:,}; {size(pull.LEASE_BYTES_MAX)} of a lease, {size(limits.PEEK_BYTES_MAX)} of a",
    f"`/journal` | {size(limits.PAGE_BYTES_MAX)}",
    f"{size(chart_file.FILE_BYTES + (1 << 20) - 1)}: the server and the {chart_file.QUEUES_MAX} busiest queues",
    f"{stats_history.VALUES_MAX:,} steps in a reply",
    f"{size(limits.SCAN_BYTES_MAX)} scanned; {search.FOUND_MAX} messages found; "
    f"a text of {search.TEXT_CHARS_MAX:,} characters",
    f"{size(limits.SCAN_BYTES_MAX)} and {limits.SCAN_MESSAGES_MAX:,} messages scanned",
    f"{filters.TEXT_BYTES_MAX:,} bytes, {filters.TESTS_MAX} tests, {filters.LITERALS_MAX} values, {filters.DEPTH_MAX} "
    f"parentheses in each other, {filters.WILD_MAX} patterns with both `%` and `_`, numbers of "
    f"{conditions.NUMBER_CHARS_MAX} characters",
    f"filters look at | {filters.VALUE_CHARS_MAX:,} characters",
    f"{filters.COSTS_AT_ONCE:,} points: a filter has 1, and 1 for each test, {filters.LIKE_WEIGHT} for each LIKE and "
    f"{filters.WILD_WEIGHT:,} for each",
    f"transaction over several queues | {transaction.COPIES_MAX:,} copies; {size(tx_log.JOURNAL_BYTES_MAX)} in all",
    f"long poll (`wait`) | {limits.WAIT_S_MAX} s",
    f"{KINDS[Note.KEY].most:,} of a queue; each for the queue's `idempotency_window`, "
    f"{options.QueueOptions().idempotency_window // 60} min by default, "
    f"at most {options.IDEMPOTENCY_S_MAX // 86_400} days | 507",
    f"{schemas.PARTS_MAX:,} parts and {schemas.DEPTH_MAX} levels, with what it refers to; "
    f"{size(schemas.PATTERN_BYTES_MAX)} for each pattern, compiled, and an equal share of "
    f"{size(schemas.PATTERNS_BYTES_MAX)} for",
    f"{AT_ONCE_MS} ms at once; what could take longer is done in another process, within {CPU_S_MAX:g} s of CPU",
    f"times parts of the schema are at most {schemas.LOOKS_APART_MAX:,} |",
    f"{metrics.QUEUES_MAX:,} by name",
    f"{size(values.PART_BYTES_MAX)}, {staging.PARTS_MAX:,} parts; `--max-staged`, {size(DEFAULTS.max_staged)}",
    f"It is `--max-buffered`, {size(net.BUFFERED_BYTES_MAX)}",
    f"quarter of it, {size(net.BUFFERED_BYTES_MAX // budget.SHARES)}.",
    f"unfinished input of more than {size(budget.SMALL_BYTES)}",
    f"receives less than {size(budget.STEP_BYTES)} a second for {budget.SLOW_S} seconds",
    f"pops and leases wait up to {limits.ANSWER_WAIT_S_MAX} s",
    f"the output that waits for it | {net.UNREAD_S_MAX} s |",
    f"HTTP has {net.RESERVE} more that get `/healthz`",
    f"streams of server-sent events | {connections.OF_USER_MAX:,}; {connections.STREAMS_MAX}, where",
    f"(Linux) | sent again {net.RETRANSMITS_MAX} times",
    f"a message under way | {limits.MESSAGE_S_MAX} s, or {size(limits.MESSAGE_BYTES_PER_S)}/s",
    f"window of a consumer (`limit`) | {limits.WINDOW_MAX:,}",
    f"messages of a producer | {limits.UNCONFIRMED_MAX:,} or {size(limits.UNCONFIRMED_BYTES_MAX)}",
    f"a socket for several queues | {limits.SUBSCRIPTIONS_MAX:,} |",
    f"a socket for several queues does not read | {size(limits.UNREAD_BYTES_MAX)} |",
    f"pinged after {limits.PING_AFTER_S} s, given up after {limits.DEAD_AFTER_S} s",
    f"{size(stomp.Limits().header_bytes_max)}, {stomp.Limits().headers_max} of them",
    f"{stomp.Limits().connect_ms // 1000} s; {stomp.Limits().frame_ms // 1000} s, or "
    f"{size(stomp.Limits().frame_bytes_per_s)}/s",
    f"{stomp.Limits().subscriptions_max:,}; {stomp.Limits().transactions_max} with "
    f"{stomp.Limits().transaction_frames_max:,} frames or {size(stomp.Limits().transaction_bytes_max)}",
    f"{size(mqks.REQUEST_BYTES_MAX)}; {mqks.Limits().line_ms // 1000} s",
    f"{size(mqks.Limits().junk_bytes_max)} or {mqks.Limits().errors_max:,} bad requests",
    f"MQKS consumers of a connection | {mqks.Limits().consumers_max:,}",
    f"{mqks.Limits().unconfirmed_max:,} or {size(mqks.Limits().unconfirmed_bytes_max)}; "
    + size(mqks.Limits().output_bytes_max),
)
"""Pieces of the page with their numbers. Each piece, with any numbers, is on the page exactly once."""

_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?: (?:bytes|[KMGT]iB))?")


def updated(page: str) -> str:
    """Return the page with the numbers of `TEXTS`; raise ValueError if one of them is missing or repeated."""
    for text in TEXTS:
        words = [re.escape(part) for part in _NUMBER.split(text)]
        page, count = re.subn(_NUMBER.pattern.join(words), text.replace("\\", r"\\"), page)
        if count != 1:
            raise ValueError(f"docs/limits.md has {count} places, not 1, for: {text}")
    return page
