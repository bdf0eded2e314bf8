"""The charts and the pairs they are drawn from."""

from pathlib import Path
from xml.etree import ElementTree

from bench import charts
from bench.check import Tally
from bench.measure import Measurement
from bench.results import Pairing, Results, rows_of
from bench.scaling import Depth, Scaling


def measured(workload: str, seconds: float) -> Measurement:
    return Measurement(workload, 100, 100, seconds, 1, None, None, 10.0, 1.0, None, 1.0, 0.2, 0.1, 0.0, 1, Tally(100))


def results() -> Results:
    theirs = rows_of([measured("send-1", 2.0), measured("drain", 1.0), measured("odd", 1.0)])
    ours = rows_of([measured("send-1", 1.0), measured("drain", 1.0)])
    alone = [
        *("send-1000", "queues-10", "queues-100", "queues-1000"),
        *("drain", "queues-10-drain", "queues-100-drain", "queues-1000-drain"),
    ]
    depths = [Depth(0, 1000, 900, 50, 0.5, 49, 120), Depth(1000, 990, 890, 60, 0.6, 51, 121)]
    return Results(
        rows_of([measured(name, 1.0) for name in alone]),
        [],
        [],
        [Pairing("a <peer> & more", "", "Peer 1.2", theirs, ours)],
        {},
        {},
        [],
        {
            "python": "3",
            "cores": 2,
            "memory_gib": 1,
            "kernel": "6",
            "file_system": "ext4",
            "load_before": 0.0,
            "clients": ["client 3.4"],
        },
        scaling=Scaling(depths, [10, 20, 30]),
    )


def test_pairing_has_only_rows_measured_for_both() -> None:
    (pairing,) = results().peers
    assert [(ours.workload, ours.per_s / theirs.per_s) for ours, theirs in pairing.pairs()] == [
        ("send-1", 2.0),
        ("drain", 1.0),
    ]


def test_each_chart_is_valid_svg_with_names_and_figures(tmp_path: Path) -> None:
    drawn = charts.draw(tmp_path / "img", results())
    assert [path.stem for path in drawn] == ["rates-100", "cpu-100", "backlog", "memory", "restart", "churn", "queues"]
    for path in drawn:
        root = ElementTree.fromstring(path.read_text())
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
    text = "".join(ElementTree.fromstring(drawn[0].read_text()).itertext())
    assert all(word in text for word in ("Curbstone", "a <peer> & more", "send-1", "50"))


def test_unmeasured_rows_are_not_drawn(tmp_path: Path) -> None:
    empty = Results([], [], [], [], {}, {}, [], {})
    assert charts.draw(tmp_path, empty) == []
