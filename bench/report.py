"""The output: tables for people, and JSON for later comparisons."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.check import Tally
from bench.disk import Limit
from bench.results import BUSY_CLIENT, NOISY, Pairing, Results, Row
from bench.scaling import Scaling
from bench.spark_figures import BESIDE_HEADS, STEP_HEADS, SparkFigures
from bench.stats import Percentiles

TEXTS = {"workload", "file", STEP_HEADS[0], BESIDE_HEADS[0]}
"""Columns without numbers."""


def show(console: Console, results: Results) -> None:
    for size in dict.fromkeys(row.size for row in results.rows):
        _show_rates(console, results, size)
        _show_costs(console, results, size)
    if results.limits:
        _show_limits(console, results.limits)
    for size in dict.fromkeys(row.size for row in results.ceilings):
        _show_ceilings(console, results.ceilings, size)
    for pairing in results.peers:
        _show_pairing(console, pairing)
    if results.footprint:
        _show_footprint(console, results.footprint)
    if results.scaling:
        _show_scaling(console, results.scaling)
    if results.spark:
        _show_spark(console, results.spark)
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
        f"{size}-byte messages, costs",
        "workload",
        "server CPU us",
        "server CPU",
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
            f"{row.server_cpu_share:.0%}",
            "-" if syncs is None else f"{syncs:.4f}",
            "-" if row.disk_bytes is None else f"{row.disk_bytes:.2f}",
            f"{row.peak_rss / 1e6:.0f}",
            _client_cell(row),
            f"{row.other_cpu_share:.0%}" + ("!" if row.other_cpu_share > NOISY else ""),
            f"{row.tally.received:,}",
            _tally_cell(row.tally),
        )
    console.print(table)


def _show_limits(console: Console, limits: Sequence[Limit]) -> None:
    table = _table(
        "the bare limit: append a prepared batch, fdatasync, repeat",
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
        f"the generator's ceiling: {size}-byte messages against a server that stores nothing",
        "workload",
        "messages/s",
        "p50 ms",
        "client CPU us",
        "client alone/s",
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


def _show_pairing(console: Console, pairing: Pairing) -> None:
    """Show ours relative to theirs. Above 1 we are faster, or cheaper, by that factor."""
    table = _table(
        f"beside {pairing.name}, {pairing.version}" + (f" ({pairing.note})" if pairing.note else ""),
        "workload",
        "message B",
        "ours/s",
        "theirs/s",
        "ratio",
        "p50 ms",
        "theirs",
        "p99 ms",
        "theirs",
        "CPU us",
        "theirs",
        "client CPU",
        "theirs",
        "their l/d/c/r/l",
    )
    for ours, theirs in pairing.pairs():
        table.add_row(
            ours.workload,
            str(ours.size),
            f"{ours.per_s:,.0f}",
            f"{theirs.per_s:,.0f}",
            f"{ours.per_s / theirs.per_s:.2f}",
            *[cell for pair in zip(*map(_latency_cells, (ours, theirs)), strict=True) for cell in pair],
            f"{ours.server_cpu_us:.1f}",
            f"{theirs.server_cpu_us:.1f}",
            *[_client_cell(row) for row in (ours, theirs)],
            _tally_cell(theirs.tally),
        )
    console.print(table)


def _latency_cells(row: Row) -> tuple[str, ...]:
    """Return p50 and p99, end to end if measured, otherwise of the confirm."""
    return _percentile_cells(row.deliveries or row.confirms)[:2]


def _client_cell(row: Row) -> str:
    return f"{row.client_cpu_share:.0%}" + ("!" if row.client_cpu_share > BUSY_CLIENT else "")


def _show_footprint(console: Console, footprint: dict[str, float]) -> None:
    table = Table(title="the idle server", title_justify="left", show_header=False)
    for key, value in footprint.items():
        table.add_row(key.replace("_", " "), f"{value:,.3f}")
    console.print(table)


def _show_scaling(console: Console, scaling: Scaling) -> None:
    table = _table(
        "by backlog, 100-byte messages",
        "queued",
        "send-1000/s",
        "drain/s",
        "RSS MB",
        "restart s",
        "restart RSS MB",
        "disk B/message",
    )
    for one in scaling.depths:
        table.add_row(*one.cells)
    console.print(table)
    if scaling.churn:
        rates = " ".join(f"{rate:,}" for rate in scaling.churn)
        console.print(
            f"churn in a {scaling.churn_cap >> 20} MiB queue, every 97th message settled late, messages in each second:"
        )
        console.print(f"  {rates}; most on disk {scaling.churn_bytes:,} of {scaling.churn_cap:,} bytes")


def _show_spark(console: Console, found: SparkFigures) -> None:
    steps = _table(f"Spark, {found.rows:,} messages of 100 bytes", *STEP_HEADS)
    for cells in found.step_cells():
        steps.add_row(*cells)
    console.print(steps)
    beside = _table("an ordinary producer and consumer of another queue, while Spark runs one task", *BESIDE_HEADS)
    for cells in found.beside_cells():
        beside.add_row(*cells)
    console.print(beside)


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
        console.print(f"! client CPU: above {BUSY_CLIENT:.0%} of a core; the generator limited the rate.")
    if any(row.other_cpu_share > NOISY for row in results.rows):
        console.print("! other CPU: other programs were busy; the rate is too low.")
    if any(not row.tally.clean for row in results.ceilings):
        console.print("[red]the generator miscounts against the null server: its other counts are invalid[/red]")
    for failure in results.failures:
        console.print("[red]failed:[/red]", escape(failure))
    tally = results.tally
    verdict = "all checked messages arrived once, undamaged and in order" if tally.clean else f"NOT CLEAN: {tally}"
    if tally.received:
        console.print(f"{tally.received:,} messages checked: {verdict}")


def write_json(path: Path, results: Results) -> None:
    path.write_text(json.dumps(dataclasses.asdict(results), indent=2) + "\n")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if column in TEXTS else "right")
    return table


def _percentile_cells(value: Percentiles | None) -> tuple[str, str, str]:
    if not value:
        return "-", "-", "-"
    return f"{value.p50_ms:.2f}", f"{value.p99_ms:.2f}", f"{value.p999_ms:.2f}"


def _tally_cell(tally: Tally) -> str:
    text = f"{tally.lost}/{tally.duplicate}/{tally.corrupt}/{tally.reordered}/{tally.left}"
    return text if tally.clean else f"[red]{text}[/red]"
