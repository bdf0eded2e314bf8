"""Options, offsets and gaps: what is checked and computed on the driver. Needs no Java."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from curbstone.spark.failure import PipelineError, Refused, last_line
from curbstone.spark.gaps import Gap, gaps_in
from curbstone.spark.options import read_options, write_options
from curbstone.spark.places import End, is_news, left, parts, planned, rows_up_to, shares, with_gap
from curbstone.spark.reading import Range, split


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({}, "no queue: use one of"),
        ({"queue": "a", "queues": "b"}, "options queue and queues"),
        (
            {"queue": "a", "maxOffsetsPerTrigger": "0"},
            "maxOffsetsPerTrigger='0': expected a whole number, 1 or more",
        ),
        ({"queue": "a", "failOnDataLoss": "maybe"}, "true or false"),
        ({"queue": "a", "startingTimestamp": "soon"}, "milliseconds since 1970, or a time such as"),
        ({"queue": "a", "url": "http://me:pw@host"}, "remove the user and password"),
        ({"queue": "a", "url": "ftp://host"}, "http://host:port"),
        ({"queue": "a", "startingOffsets": "latest"}, "needs groupId"),
        ({"queue": "a", "endingOffsets": "5"}, "a stream has no end"),
        ({"queue": "a", "mode": "journal", "groupId": "g"}, "mode=journal allows"),
        ({"queue": "a", "startingOffsets": '{"b": 5}'}, "option startingOffsets names default/b, which is not among"),
        ({"queuePattern": "a.*", "startingOffsets": '{"b": 5}'}, "option startingOffsets names default/b"),
        ({"queuePattern": "("}, "option queuePattern"),
        ({"queue": "a", "tokenFile": "/does/not/exist"}, "No such file"),
    ],
)
def test_bad_options_of_a_stream_are_named(options: dict[str, str], line: str) -> None:
    with pytest.raises(PipelineError) as caught:
        read_options(options, stream=True)
    assert line in str(caught.value)
    assert "pw@" not in str(caught.value)


def test_options_ignore_case_and_positions_are_per_queue() -> None:
    options = read_options({"QUEUES": "a,shop/b", "startingoffsets": '{"a": 5, "shop/b": -2}', "GroupID": "g"})
    assert options.queues == ("default/a", "shop/b")
    assert options.start is not None
    assert (options.start.of("default/a"), options.start.of("shop/b")) == (5, "earliest")


def test_token_is_passed_on_and_never_shown(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cr3t\n")
    for options in ({"token": "s3cr3t"}, {"tokenFile": str(tmp_path / "token")}):
        found = write_options({"queue": "a", **options}, stream=False)
        assert "s3cr3t" not in repr(found)
        assert pickle.loads(pickle.dumps(found)).address.token.reveal() == "s3cr3t"


def test_ranges_are_split_in_order_up_to_the_limit() -> None:
    options = read_options({"queue": "a", "maxRecordsPerPartition": "100", "minPartitions": "4"})
    tasks = split([Range("a", "e", 1, 251), Range("b", "e", 5, 5), Range("c", "e", 7, 17)], options)
    assert [[(part.queue, part.low, part.high) for part in task.ranges] for task in tasks] == [
        [("a", 1, 66)],
        [("a", 66, 131)],
        [("a", 131, 196)],
        [("a", 196, 251), ("c", 7, 17)],
    ]


def test_a_thousand_quiet_queues_are_one_task() -> None:
    """Each was a task of its own, and starting one costs as much as reading 30,000 messages."""
    quiet = [Range(f"q{number}", "e", 1, 3) for number in range(1000)]
    [task] = split(quiet, read_options({"queue": "a"}))
    assert task.ranges == tuple(quiet)
    assert split([Range("a", "e", 5, 5)], read_options({"queue": "a"})) == []


def test_default_is_a_task_per_core_from_100k_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was four at most, of 100,000 rows each: ten executors were idle."""
    options = read_options({"queue": "a"})
    sizes = (10, 59_999, 60_000, 100_000, 1_000_000, 2_000_000)
    assert [len(split([Range("a", "e", 1, 1 + rows)], options)) for rows in sizes] == [1, 1, 2, 4, 4, 8]
    monkeypatch.setenv("CURBSTONE_SPARK_CORES", "10")
    many = read_options({"queue": "a"})
    assert [len(split([Range("a", "e", 1, 1 + rows)], many)) for rows in sizes] == [1, 1, 2, 10, 10, 10]
    queues = [Range(f"q{number}", "e", 1, 1001) for number in range(100)]
    assert [len(task.ranges) for task in split(queues, many)] == [10] * 10
    asked = read_options({"queue": "a", "minPartitions": "1"})
    assert len(split([Range("a", "e", 1, 250_001)], asked)) == 1


def test_batch_is_divided_in_proportion() -> None:
    assert shares({"a": 5, "b": 0}, 10) == {"a": 5, "b": 0}
    assert shares({"a": 900, "b": 100}, 100) == {"a": 90, "b": 10}
    assert shares({"a": 1_000_000, "b": 1}, 100) == {"a": 99, "b": 1}
    assert sum(shares({str(number): 3 for number in range(50)}, 10).values()) == 10


def test_bytes_are_divided_in_proportion_and_unlimited_without_server_support() -> None:
    begun = {"a": {"next": 1}, "b": {"next": 101}, "gone": {"next": 5}}
    ends = {"a": End(1001, 501, 1000, 1000), "b": End(201, 201, 1000, 1000), "gone": End(5, 5, 0, 0)}
    assert rows_up_to(begun, ends, None) == {"a": 250, "b": 50, "gone": 0}
    assert rows_up_to(begun, ends, {"a": 11, "b": 101}) == {"a": 10, "b": 0, "gone": 0}
    assert rows_up_to(begun, {"a": ends["a"]}, None) == {"a": 500}
    assert rows_up_to(begun, {"a": End(1001, 1001, 0, 0), "b": End(201, 201, 0, 0)}, None) == {"a": 1000, "b": 100}


def test_gap_is_recorded_in_the_following_offset() -> None:
    place = {"next": 300, "epoch": "e", "floor": 300, "lost": 150}
    lost = with_gap(place, Gap("p/q", "e", 100, 300, 150, 150, "why"))
    anew = with_gap(lost, Gap("p/q", "e", 300, None, None, 7, "other"))
    first, second = gaps_in({"p/q": planned(anew, 10), "p/r": place})
    assert str(first) == "p/q: messages lost from 100 to 299: 150 (why)"
    assert str(second) == "p/q: messages lost from 300 on: unknown, at least 7 (other)"
    assert left(planned(anew, 10)) == {**place, "next": 310}


def test_batch_is_determined_by_its_offset() -> None:
    place = {"next": 100, "epoch": "e", "floor": 0, "lost": 0}
    end = {"p/q": planned(place, 10), "p/new": planned({**place, "next": 1}, 5), "p/idle": planned(place, 0)}
    whole = [("p/q", "e", 100, 110), ("p/new", "e", 1, 6)]
    assert parts({"p/q": place, "p/idle": place}, end) == whole
    assert parts({"p/q": {**place, "next": 50}}, end) == whole
    assert parts(end, end) == []
    assert not is_news(end, {queue: left(at) for queue, at in end.items()}, {"p/q": 0})


def test_older_checkpoint_offset_begins_at_the_previous_end() -> None:
    place = {"next": 100, "epoch": "e", "floor": 0, "lost": 0}
    assert parts({"p/q": place}, {"p/q": {**place, "next": 110}}) == [("p/q", "e", 100, 110)]
    assert parts({"p/q": place}, {"p/q": {**place, "next": 9, "epoch": "f"}}) == [("p/q", "f", 0, 9)]
    assert parts({}, {"p/q": place}) == [("p/q", "e", None, 100)]


def test_error_line_is_extracted_from_a_spark_exception() -> None:
    wrapped = RuntimeError(
        f"Job aborted\n  curbstone.spark.failure.DataLoss: {PipelineError('DATA_LOSS queue=a')}\n at x"
    )
    assert last_line(wrapped) == "DATA_LOSS queue=a"
    assert last_line(ValueError("one\ntwo")) == "ValueError: one"
    bridge = "py4j.protocol.Py4JJavaError: An error occurred while calling o1.parquet.\n: java.io.IOException: No space"
    shown = f"[FOREACH] Message: Traceback (most recent call last):\n  File x\n{bridge}\n at"
    assert last_line(RuntimeError(shown)) == "java.io.IOException: No space"
    java = "An error occurred while calling o81.start.\n: java.io.IOException: mkdir of file:/x failed\n\tat org.x"
    assert last_line(RuntimeError(java)) == "java.io.IOException: mkdir of file:/x failed"
    again = pickle.loads(pickle.dumps(Refused(410, "gone", {"first": 5})))
    assert (again.status, again.members, str(again)) == (410, {"first": 5}, "curbstone: gone")


def test_kafka_source_options_with_equal_meaning_are_accepted() -> None:
    found = read_options(
        {"subscribe": "a,b", "kafka.group.id": "g", "startingOffsets": '{"a": {"0": 23}, "b": -2}'}, stream=True
    )
    assert (found.queues, found.group) == (("default/a", "default/b"), "g")
    assert (found.start.of("default/a"), found.start.of("default/b")) == (23, "earliest") if found.start else False
    assert read_options({"subscribePattern": "a.*"}).pattern == "a.*"
    assert write_options({"topic": "a"}, stream=True).queue == "default/a"
    with pytest.raises(PipelineError, match="have the same meaning"):
        read_options({"subscribe": "a", "queues": "b"})
    with pytest.raises(PipelineError, match="a number, or JSON"):
        read_options({"subscribe": "a", "startingOffsets": '{"a": {"0": 1, "1": 1}}'})


def test_ca_option_requires_a_file_and_https(tmp_path: Path) -> None:
    (tmp_path / "none.pem").write_text("nothing")
    for options, why in (
        ({"url": "http://a:1", "caFile": "x"}, "needs a url that begins with https://"),
        ({"url": "https://a:1", "caFile": str(tmp_path / "gone.pem")}, "No such file"),
        ({"url": "https://a:1", "caFile": str(tmp_path / "none.pem")}, "it holds no certificates"),
    ):
        with pytest.raises(PipelineError, match=why):
            read_options({"queue": "a", **options})


def test_environment_supplies_missing_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`curbstone --token-file FILE --ca-file FILE sql` hands its options on in the environment."""
    for name, token in (("first", "one"), ("second", "two")):
        (tmp_path / name).write_text(token)
    monkeypatch.setenv("CURBSTONE_TOKEN_FILE", str(tmp_path / "first"))
    assert read_options({"queue": "a"}).address.token.reveal() == "one"
    assert read_options({"queue": "a", "tokenFile": str(tmp_path / "second")}).address.token.reveal() == "two"
    monkeypatch.setenv("CURBSTONE_TOKEN", "three")
    assert read_options({"queue": "a"}).address.token.reveal() == "one", "the file wins, as on the command line"
    monkeypatch.delenv("CURBSTONE_TOKEN_FILE")
    assert read_options({"queue": "a"}).address.token.reveal() == "three"
    monkeypatch.setenv("CURBSTONE_CA_FILE", str(tmp_path / "none.pem"))
    assert read_options({"queue": "a", "url": "http://a:1"}).address.ca_file == ""
    with pytest.raises(PipelineError, match=r"none\.pem.*: No such file"):
        read_options({"queue": "a", "url": "https://a:1"})
