"""`curbstone top`: a live table of depths and rates, of the busiest queues first."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from curbstone.cli.client import Client
from curbstone.cli.options import Json
from curbstone.cli.output import console, counted, print_json, size, table

if TYPE_CHECKING:
    from rich.table import Table

_GAUGES = (
    *("messages_ready", "messages_unacked", "messages_delayed", "consumers", "disk_bytes", "cap_used_ratio"),
    *("available_bytes", "messages_refused_last_minute"),
)
_COUNTERS = {
    "published": "messages_published",
    "delivered": "messages_delivered",
    "acked": "messages_acknowledged",
}

Figures = dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class Sample:
    """The figures of every queue at one moment."""

    at_s: float
    queues: Figures
    chosen: int
    """How many queues there are in all."""

    def rates(self, earlier: Sample | None) -> dict[str, dict[str, float]]:
        """Return the increase of the counters per second since an earlier sample; nothing without one."""
        if earlier is None or self.at_s <= earlier.at_s:
            return {}
        found: dict[str, dict[str, float]] = {}
        for name in self.queues.keys() & earlier.queues.keys():  # the other queues are not in both samples
            figures, before = self.queues[name], earlier.queues[name]
            risen = {key: figures[counter] - before[counter] for key, counter in _COUNTERS.items()}
            found[name] = {key: max(value, 0) / (self.at_s - earlier.at_s) for key, value in risen.items()}
        return found


def top(
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.1, max=3600, help="Seconds between updates")
    ] = 1,
    count: Annotated[
        int, typer.Option("--count", "-n", metavar="N", min=0, help="End after this many updates; 0 for no end")
    ] = 0,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", metavar="N", min=1, max=10_000, help="The maximum number of queues to show, the busiest first"
        ),
    ] = 1000,
    as_json: Json = False,
) -> None:
    """Show depths and rates of the busiest queues, live.

    In a pipe, or with --json, each table is printed below the previous one.
    """
    query = {"order": "messages_per_second", "limit": str(limit)}
    live = sys.stdout.isatty() and not as_json
    looks = 0
    earlier: Sample | None = None
    with Client() as client:

        def sample() -> Sample:
            stats = client.call("GET", "/v2/stats", params=query).json()
            return Sample(time.monotonic(), figures_in(stats), stats["queues_chosen"])

        def next_sample() -> tuple[Sample, Mapping[str, dict[str, float]]]:
            nonlocal earlier, looks
            now = sample()
            rates = now.rates(earlier)
            earlier = now
            looks += 1
            return now, rates

        if live:
            from rich.live import Live

            with Live(console=console(), screen=count == 0, auto_refresh=False) as screen:
                while True:
                    screen.update(_table(*next_sample(), client.url), refresh=True)
                    if looks == count:
                        return
                    time.sleep(interval)
        while True:
            now, rates = next_sample()
            if as_json:
                print_json({"queues": [{"queue": n, **f, "rates": rates.get(n, {})} for n, f in now.queues.items()]})
            else:
                console().print(_table(now, rates, client.url))
            if looks == (count or 1):
                return
            time.sleep(interval)


def figures_in(stats: Mapping[str, Any]) -> Figures:
    """Return the figures of each queue, by its name."""
    return {
        f"{queue['project']}/{queue['queue']}": {name: queue[name] for name in (*_GAUGES, *_COUNTERS.values())}
        for queue in stats["queues"]
    }


def _table(now: Sample, rates: Mapping[str, dict[str, float]], server: str) -> Table:

    def activity(name: str) -> tuple[float, float, str]:
        return -sum(rates.get(name, {}).values()), -now.queues[name].get("messages_ready", 0), name

    rows = []
    for name in sorted(now.queues, key=activity):
        figures = now.queues[name]
        rate = rates.get(name)
        rows.append(
            [
                name,
                *[int(figures.get(gauge, 0)) for gauge in _GAUGES[:4]],
                *[f"{rate[key]:,.0f}" if rate else "-" for key in _COUNTERS],
                size(figures.get("disk_bytes", 0)),
                f"{100 * figures.get('cap_used_ratio', 0):.0f} %",
                "full" if figures["messages_refused_last_minute"] or not figures["available_bytes"] else "",
            ]
        )
    heads = ("QUEUE", "RDY", "WIP", "DELAYED", "CONSUMERS", "IN/s", "OUT/s", "ACK/s", "ON DISK", "OF CAP", "")
    all_of_them = counted(now.chosen, "queue")
    count = all_of_them if len(rows) == now.chosen else f"the busiest {len(rows)} of {all_of_them}"
    return table(heads, rows, f"{server}   {count}")
