"""Writes the figures as Markdown between two marks of a page."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench.results import BUSY_CLIENT, NOISY, Results, Row
from bench.scaling import Scaling
from bench.spark_figures import BESIDE_HEADS, STEP_HEADS, SparkFigures
from bench.stats import median_of
from bench.wire import BenchError

SINGLE = "send-1"
LATENCY_LEGEND = (
    "The time from a SEND, or the peer's equivalent, to its confirm. The producer waits for each: one round "
    "trip with one sync. The bare disk is a loop that appends the message to a file and syncs it, without a client."
)
BEGIN, END = "<!-- figures: written by the benchmark -->", "<!-- end of figures -->"


def fill(page: Path, results: Results, charts: Sequence[Path]) -> None:
    """Replace the text between the marks. Raise BenchError if the page has no marks."""
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise BenchError(f"{page} has no place for figures: {BEGIN} … {END}")
    page.write_text(f"{before}{BEGIN}\n\n{figures(results, charts, page.parent)}\n{END}{after}", encoding="utf-8")


def figures(results: Results, charts: Sequence[Path], folder: Path) -> str:
    """Return all results, with links to the charts relative to `folder`."""
    parts = ["\n".join(_environment(results))]
    if results.peers:
        parts += ["### Beside others", _legend(), *_beside(results)]
    if latencies := list(_latencies(results)):
        parts += ["### One message at a time", LATENCY_LEGEND, *latencies]
    parts += [_image(path, folder) for path in charts if path.stem.startswith(("rates", "cpu"))]
    for size in dict.fromkeys(row.size for row in results.rows):
        parts += [f"### Curbstone alone, {size}-byte messages", _alone(results, size)]
    if results.scaling:
        parts += ["### How it grows", *_scaling(results.scaling)]
    parts += [_image(path, folder) for path in charts if not path.stem.startswith(("rates", "cpu"))]
    if results.spark:
        parts += ["### Spark", *_spark(results.spark)]
    if results.footprint:
        rows = [(key.replace("_", " "), f"{value:,.2f}") for key, value in results.footprint.items()]
        parts += ["### When nothing happens", _table(["", ""], rows)]
    return "\n\n".join(parts) + "\n"


def _environment(results: Results) -> Iterator[str]:
    known = results.environment
    rows = [*results.rows, *(row for one in results.peers for pair in one.pairs() for row in pair)]
    noise = median_of(row.other_cpu_share for row in rows)
    others = "" if noise is None else f" In the middle run other programs used {noise:.0%} of the machine."
    yield (
        f"Measured {datetime.now(UTC):%Y-%m-%d}: Python {known['python']}, {known['cores']} cores, "
        f"{known['memory_gib']} GiB, kernel {known['kernel']}, {known['file_system']}; load before "
        f"{known['load_before']:.1f}.{others}"
    )
    checked = results.tally
    verdict = "all arrived once, whole and in order" if checked.clean else f"not clean: {checked}"
    yield f"{checked.received:,} of Curbstone's messages were checked on arrival: {verdict}."
    yield from (f"Failed: {failure.splitlines()[0]}." for failure in results.failures)


def _legend() -> str:
    return (
        "Each cell: Curbstone's rate divided by the peer's, then the peer's server CPU a message divided by "
        "Curbstone's. Above 1 Curbstone is faster, or cheaper. Both were measured directly one after the other. "
        f"`~`: other programs used more than {NOISY:.0%} of the machine meanwhile. "
        f"`!`: a load generator used more than {BUSY_CLIENT:.0%} of a core."
    )


def _beside(results: Results) -> Iterator[str]:
    pairs = {
        (theirs.workload, theirs.size, pairing.name): (ours, theirs)
        for pairing in results.peers
        for ours, theirs in pairing.pairs()
    }
    names = list(dict.fromkeys(name for _, _, name in pairs))
    for size in dict.fromkeys(size for _, size, _ in pairs):
        rows = []
        for workload in dict.fromkeys(workload for workload, own, _ in pairs if own == size):
            found = [pairs.get((workload, size, name)) for name in names]
            ours = median_of(pair[0].per_s for pair in found if pair)
            rows.append((workload, f"{ours or 0:,.0f}", *[_cell(pair) for pair in found]))
        yield f"{size}-byte messages:"
        yield _table(["workload", "Curbstone/s", *names], rows)
    versions = [*dict.fromkeys(pairing.version for pairing in results.peers), *results.environment["clients"]]
    yield f"Versions: {', '.join(versions)}."
    for pairing in results.peers:
        if pairing.note:
            yield f"{pairing.name}: {pairing.note}."


def _cell(pair: tuple[Row, Row] | None) -> str:
    if pair is None:
        return ""
    ours, theirs = pair
    mark = "~" if max(ours.other_cpu_share, theirs.other_cpu_share) > NOISY else ""
    mark += "!" if max(ours.client_cpu_share, theirs.client_cpu_share) > BUSY_CLIENT else ""
    mark += "" if theirs.tally.clean else " (theirs not clean)"
    return f"{ours.per_s / theirs.per_s:.2f} / {theirs.server_cpu_us / max(ours.server_cpu_us, 0.01):.1f}{mark}"


def _latencies(results: Results) -> Iterator[str]:
    for size in dict.fromkeys(limit.size for limit in results.limits):
        bare = results.bare_sync(size)
        mine = [("Curbstone", row) for row in results.rows]
        theirs = [(pairing.name, row) for pairing in results.peers for row in pairing.theirs]
        found = [
            (name, row.confirms)
            for name, row in [*mine, *theirs]
            if (row.workload, row.size) == (SINGLE, size) and row.confirms and row.tally.clean
        ]
        if found and bare:
            rows = [("the bare disk", bare), *sorted(found, key=lambda one: one[1].p50_ms)]
            yield f"{size}-byte messages:"
            yield _table(
                ["", "p50 ms", "p99 ms", "times the bare disk's p50"],
                [
                    (name, f"{times.p50_ms:.2f}", f"{times.p99_ms:.2f}", f"{times.p50_ms / bare.p50_ms:.1f}")
                    for name, times in rows
                ],
            )


def _alone(results: Results, size: int) -> str:
    rows = []
    for row in (row for row in results.rows if row.size == size):
        times = row.deliveries or row.confirms
        syncs = results.syncs(row)
        rows.append(
            (
                row.workload,
                f"{row.per_s:,.0f}",
                f"{row.slowest:,.0f} – {row.fastest:,.0f}" if row.runs > 1 else "",
                f"{times.p50_ms:.2f}" if times else "",
                f"{times.p99_ms:.2f}" if times else "",
                f"{row.server_cpu_us:.1f}",
                f"{row.client_cpu_share:.0%}" + ("!" if row.client_cpu_share > BUSY_CLIENT else ""),
                "" if syncs is None else f"{syncs:.4f}",
                f"{row.other_cpu_share:.0%}" + ("~" if row.other_cpu_share > NOISY else ""),
            )
        )
    heads = ["workload", "messages/s", "slowest – fastest", "p50 ms", "p99 ms", "server µs", "client core"]
    return _table([*heads, "syncs a message", "others' CPU"], rows)


def _scaling(scaling: Scaling) -> Iterator[str]:
    heads = ["queued", "send-1000/s", "drain/s", "RSS MB", "restart s", "RSS after it MB", "disk B a message"]
    yield _table(heads, [one.cells for one in scaling.depths])
    if scaling.churn:
        middle = median_of(scaling.churn)
        yield (
            f"Churn through a queue of {scaling.churn_cap:,} bytes for {len(scaling.churn)} s: {middle or 0:,.0f} "
            f"messages in the middle second, {min(scaling.churn):,} in the slowest; its directory held at most "
            f"{scaling.churn_bytes:,} bytes."
        )


def _spark(found: SparkFigures) -> Iterator[str]:
    yield (
        f"{found.rows:,} messages of 100 bytes; Java, Python and the server on the same cores. "
        "Cold: the first of its kind, while Java still compiles. Memory is the server's."
    )
    yield _table(STEP_HEADS, found.step_cells())
    if found.beside:
        yield "An ordinary STOMP producer and consumer on another queue of the same server, while Spark runs one task:"
        yield _table(BESIDE_HEADS, found.beside_cells())


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---", *["---:" for _ in heads[1:]]], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _image(path: Path, folder: Path) -> str:
    return f"![{path.stem}]({path.resolve().relative_to(folder.resolve()).as_posix()})"
