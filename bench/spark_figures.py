"""The figures of the pipeline's benchmark: its steps, and the speed of other consumers of the same server."""

import os
from dataclasses import dataclass, field

from bench.check import Tally
from bench.stats import median_of

ALONE = "alone"
APART = "Spark without the server"


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a step. CPU times are in seconds, the server's memory is in bytes."""

    name: str
    rows: int
    seconds: float
    spark_s: float
    """The CPU time of Java, all its Python workers, and the process that uses them."""
    server_s: float
    other_s: float
    """The CPU time of all other processes on the machine."""
    rss_before: int
    rss_most: int
    rss_after: int


@dataclass(frozen=True, slots=True)
class Beside:
    """One run of `pipe` on another queue, with or without Spark."""

    load: str
    per_s: float
    server_cpu_us: float
    """Per message. It includes the cost of the load, if the load uses the server."""
    spark_cores: float
    server_cores: float
    other_cores: float
    """Cores used by none of Spark, the server, the producer and the consumer."""
    tally: Tally


@dataclass(slots=True)
class SparkFigures:
    rows: int = 0
    runs: list[Run] = field(default_factory=list)
    beside: list[Beside] = field(default_factory=list)

    @property
    def tally(self) -> Tally:
        return sum((one.tally for one in self.beside), Tally())

    def step_cells(self) -> list[tuple[str, ...]]:
        """Return a row for each step with the medians of its runs; see STEP_HEADS."""
        return [_step_cells([run for run in self.runs if run.name == name]) for name in _names(self.runs)]

    def beside_cells(self) -> list[tuple[str, ...]]:
        """Return a row for each load with the medians of its runs; see BESIDE_HEADS."""
        loads = list(dict.fromkeys(one.load for one in self.beside))
        rates = {load: _middle([one.per_s for one in self.beside if one.load == load]) for load in loads}
        rows: list[tuple[str, ...]] = []
        for load in loads:
            same = [one for one in self.beside if one.load == load]
            rows.append(
                (
                    load,
                    f"{rates[load]:,.0f}",
                    f"{rates[load] / rates[ALONE]:.0%}",
                    f"{rates[load] / rates[APART]:.0%}" if load not in (ALONE, APART) and APART in rates else "",
                    f"{_middle([one.spark_cores for one in same]):.2f}",
                    f"{_middle([one.server_cores for one in same]):.2f}",
                    f"{_middle([one.server_cpu_us for one in same]):.1f}",
                    f"{_middle([one.other_cores for one in same]):.2f}",
                )
            )
        return rows


STEP_HEADS = (
    *("step", "rows/s", "slowest – fastest", "Spark's CPU µs a row", "server's CPU µs a row"),
    *("RSS MB before", "most", "after", "others' CPU"),
)
BESIDE_HEADS = (
    *("consumers beside", "messages/s", "of alone", "of beside Spark without the server"),
    *("Spark's cores", "server's cores", "server µs a message", "others' cores"),
)


def _names(runs: list[Run]) -> list[str]:
    return list(dict.fromkeys(run.name for run in runs))


def _middle(values: list[float]) -> float:
    return median_of(values) or 0.0


def _step_cells(runs: list[Run]) -> tuple[str, ...]:
    rates = [run.rows / run.seconds for run in runs]
    cores = os.cpu_count() or 1
    return (
        runs[0].name,
        f"{_middle(rates):,.0f}",
        f"{min(rates):,.0f} – {max(rates):,.0f}" if len(runs) > 1 else "",
        f"{_middle([run.spark_s / run.rows * 1e6 for run in runs]):.2f}",
        f"{_middle([run.server_s / run.rows * 1e6 for run in runs]):.2f}",
        f"{runs[0].rss_before / 1e6:.0f}",
        f"{max(run.rss_most for run in runs) / 1e6:.0f}",
        f"{runs[-1].rss_after / 1e6:.0f}",
        f"{_middle([run.other_s / run.seconds / cores for run in runs]):.0%}",
    )
