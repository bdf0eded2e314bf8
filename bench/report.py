"""What is printed and written: rich tables for people, JSON for the next comparison."""

import dataclasses
import json
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.check import Tally
from bench.disk import Limit
from bench.measure import Measurement
from bench.stats import Percentiles, median_of

BUSY_CLIENT = 0.9
NOISY = 0.2
SENDS = {"send-1", "send-1000", "send-varied", "producers-16", "ws-publish", "http-post", "pipe"}


@dataclass(frozen=True, slots=True)
class Row:
    """The medians of one workload's runs."""

    workload: str
    size: int
    runs: int
    per_s: float
    slowest: float
    fastest: float
    batch: int
    confirms: Percentiles | None
    deliveries: Percentiles | None
    server_cpu_us: float
    client_cpu_us: float
    client_cpu_share: float
    other_cpu_share: float
    syncs: float | None
    disk_bytes: float | None
    peak_rss: int
    tally: Tally


def rows_of(measured: Sequence[Measurement]) -> list[Row]:
    """One row for each workload and size, in the order of their first runs."""
    keys = list(dict.fromkeys((one.workload, one.size) for one in measured))
    return [_row([one for one in measured if (one.workload, one.size) == key]) for key in keys]


def _row(runs: Sequence[Measurement]) -> Row:
    def middle(values: Iterable[float | None]) -> float:
        return median_of(values) or 0.0

    rates = [one.per_s for one in runs]
    return Row(
        workload=runs[0].workload,
        size=runs[0].size,
        runs=len(runs),
        per_s=middle(rates),
        slowest=min(rates),
        fastest=max(rates),
        batch=runs[0].batch,
        confirms=_middle_percentiles([one.confirms for one in runs]),
        deliveries=_middle_percentiles([one.deliveries for one in runs]),
        server_cpu_us=middle(one.server_cpu_us for one in runs),
        client_cpu_us=middle(one.client_cpu_us for one in runs),
        client_cpu_share=middle(one.client_cpu_share for one in runs),
        other_cpu_share=middle(one.other_cpu_share for one in runs),
        syncs=median_of(one.syncs for one in runs),
        disk_bytes=median_of(one.disk_bytes for one in runs),
        peak_rss=max(one.peak_rss for one in runs),
        tally=sum((one.tally for one in runs), Tally()),
    )


def _middle_percentiles(values: Sequence[Percentiles | None]) -> Percentiles | None:
    known = [one for one in values if one]
    if not known:
        return None
    middle = [median_of(getattr(one, field) for one in known) for field in ("p50_ms", "p99_ms", "p999_ms")]
    return Percentiles(*(value or 0.0 for value in middle))


@dataclass(slots=True)
class Results:
    """Everything of one invocation."""

    rows: list[Row]
    ceilings: list[Row]
    limits: list[Limit]
    peers: dict[str, list[Row]]
    syncs_by_strace: dict[str, float]
    """Syncs per message from a traced run, by "workload/size"."""
    backlog: dict[str, Any]
    failures: list[str]
    environment: dict[str, Any]

    @property
    def tally(self) -> Tally:
        return sum((row.tally for row in self.rows), Tally())

    @property
    def clean(self) -> bool:
        everything = [self.rows, self.ceilings, *self.peers.values()]
        return not self.failures and all(row.tally.clean for rows in everything for row in rows)

    def ceiling(self, row: Row) -> Row | None:
        return next((one for one in self.ceilings if (one.workload, one.size) == (row.workload, row.size)), None)

    def limit(self, row: Row) -> Limit | None:
        """The bare limit at as many messages to a sync as this workload can have in flight, the faster kind of file."""
        fitting = [one for one in self.limits if (one.size, one.batch) == (row.size, row.batch)]
        return max(fitting, key=lambda one: one.messages_per_s, default=None) if row.workload in SENDS else None

    def syncs(self, row: Row) -> float | None:
        return self.syncs_by_strace.get(f"{row.workload}/{row.size}", row.syncs)


def environment(folder: Path) -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "folder": str(folder),
        "file_system": file_system(folder),
        "load_before": os.getloadavg()[0],
    }


def file_system(folder: Path) -> str:
    """Its type, by the longest mount point above the folder."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    above = [(point, kind) for point, kind in mounts if folder.resolve().is_relative_to(point)]
    return max(above, key=lambda mount: len(mount[0]), default=("", "unknown"))[1]


def show(console: Console, results: Results) -> None:
    for size in dict.fromkeys(row.size for row in results.rows):
        _show_rates(console, results, size)
        _show_costs(console, results, size)
    if results.limits:
        _show_limits(console, results.limits)
    for size in dict.fromkeys(row.size for row in results.ceilings):
        _show_ceilings(console, results.ceilings, size)
    for name, rows in results.peers.items():
        _show_peer(console, name, rows)
    if results.backlog:
        _show_backlog(console, results.backlog)
    _show_notes(console, results)


def _show_rates(console: Console, results: Results, size: int) -> None:
    runs = max(row.runs for row in results.rows)
    title = f"{size}-byte messages, medians of {runs} runs" if runs > 1 else f"{size}-byte messages, one run"
    table = _table(
        title,
        "workload",
        "messages/s",
        "slowest-fastest",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
        "of bare limit",
        "of ceiling",
    )
    for row in (row for row in results.rows if row.size == size):
        limit, ceiling = results.limit(row), results.ceiling(row)
        table.add_row(
            row.workload,
            f"{row.per_s:,.0f}",
            f"{row.slowest:,.0f}-{row.fastest:,.0f}" if row.runs > 1 else "",
            *_percentile_cells(row.confirms),
            f"{row.per_s / limit.messages_per_s:.1%}" if limit else "-",
            f"{row.per_s / ceiling.per_s:.1%}" if ceiling else "-",
        )
        if row.deliveries:
            table.add_row("  end to end", "", "", *_percentile_cells(row.deliveries), "", "")
    console.print(table)


def _show_costs(console: Console, results: Results, size: int) -> None:
    table = _table(
        f"{size}-byte messages, what it takes",
        "workload",
        "server CPU us",
        "syncs/message",
        "disk bytes/byte",
        "peak RSS MB",
        "client CPU",
        "other CPU",
        "received",
        "lost/dup/corrupt/reordered/left",
    )
    for row in (row for row in results.rows if row.size == size):
        syncs = results.syncs(row)
        table.add_row(
            row.workload,
            f"{row.server_cpu_us:.1f}",
            "-" if syncs is None else f"{syncs:.4f}",
            "-" if row.disk_bytes is None else f"{row.disk_bytes:.2f}",
            f"{row.peak_rss / 1e6:.0f}",
            f"{row.client_cpu_share:.0%}" + ("!" if row.client_cpu_share > BUSY_CLIENT else ""),
            f"{row.other_cpu_share:.0%}" + ("!" if row.other_cpu_share > NOISY else ""),
            f"{row.tally.received:,}",
            _tally_cell(row.tally),
        )
    console.print(table)


def _show_limits(console: Console, limits: Sequence[Limit]) -> None:
    table = _table(
        "the bare limit: append a ready-made batch, fdatasync, again",
        "message B",
        "batch",
        "file",
        "messages/s",
        "syncs/s",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
        "loop's own time",
    )
    for one in limits:
        table.add_row(
            str(one.size),
            str(one.batch),
            "preallocated" if one.preallocated else "growing",
            f"{one.messages_per_s:,.0f}",
            f"{one.syncs_per_s:,.0f}",
            *_percentile_cells(one.sync),
            f"{one.loop_share:.1%}",
        )
    console.print(table)


def _show_ceilings(console: Console, ceilings: Sequence[Row], size: int) -> None:
    table = _table(
        f"the generator's ceiling: {size}-byte messages against a sink that keeps nothing",
        "workload",
        "messages/s",
        "p50 ms",
        "client CPU us",
        "client alone could do/s",
        "sink CPU us",
        "client CPU",
    )
    for row in (row for row in ceilings if row.size == size):
        table.add_row(
            row.workload,
            f"{row.per_s:,.0f}",
            f"{row.confirms.p50_ms:.3f}" if row.confirms else "-",
            f"{row.client_cpu_us:.2f}",
            f"{1e6 / row.client_cpu_us:,.0f}",
            f"{row.server_cpu_us:.2f}",
            f"{row.client_cpu_share:.0%}",
        )
    console.print(table)


def _show_peer(console: Console, name: str, rows: Sequence[Row]) -> None:
    table = _table(
        name,
        "workload",
        "message B",
        "messages/s",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
        "server CPU us",
        "peak RSS MB",
        "l/d/c/r/l",
    )
    for row in rows:
        table.add_row(
            row.workload,
            str(row.size),
            f"{row.per_s:,.0f}",
            *_percentile_cells(row.confirms),
            f"{row.server_cpu_us:.1f}",
            f"{row.peak_rss / 1e6:.0f}",
            _tally_cell(row.tally),
        )
    console.print(table)


def _show_backlog(console: Console, backlog: dict[str, Any]) -> None:
    table = Table(title="backlog", title_justify="left", show_header=False)
    for key, value in backlog.items():
        table.add_row(key.replace("_", " "), f"{value:,.2f}" if isinstance(value, float) else f"{value:,}")
    console.print(table)


def _show_notes(console: Console, results: Results) -> None:
    known = results.environment
    console.print(
        f"Python {known['python']}, {known['cores']} cores, {known['memory_gib']} GiB, kernel {known['kernel']}, "
        f"data on {known['file_system']} ({known['folder']}), load before {known['load_before']:.1f}",
        highlight=False,
    )
    if known["file_system"] == "tmpfs":
        console.print("The data is in memory: syncs cost nothing here. Choose a folder on a disk with --dir.")
    if any(results.syncs(row) is None for row in results.rows):
        console.print("Syncs per message: unavailable (the server has no counter for them and strace did not count).")
    if any(row.client_cpu_share > BUSY_CLIENT for row in results.rows):
        console.print("! client CPU: the generator had no room left there; the server could do more.")
    if any(row.other_cpu_share > NOISY for row in results.rows):
        console.print("! other CPU: something else was busy; take that rate as too low.")
    if any(not row.tally.clean for row in results.ceilings):
        console.print("[red]the generator miscounts against its own sink: its other counts mean nothing[/red]")
    for failure in results.failures:
        console.print("[red]failed:[/red]", escape(failure))
    tally = results.tally
    verdict = "all checked messages arrived once, whole and in order" if tally.clean else f"NOT CLEAN: {tally}"
    if tally.received:
        console.print(f"{tally.received:,} messages checked: {verdict}")


def write_json(path: Path, results: Results) -> None:
    path.write_text(json.dumps(dataclasses.asdict(results), indent=2) + "\n")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if column in ("workload", "file") else "right")
    return table


def _percentile_cells(value: Percentiles | None) -> tuple[str, str, str]:
    if not value:
        return "-", "-", "-"
    return f"{value.p50_ms:.2f}", f"{value.p99_ms:.2f}", f"{value.p999_ms:.2f}"


def _tally_cell(tally: Tally) -> str:
    text = f"{tally.lost}/{tally.duplicate}/{tally.corrupt}/{tally.reordered}/{tally.left}"
    return text if tally.clean else f"[red]{text}[/red]"
