"""Changes of a history after which it is impossible."""

from __future__ import annotations

from copy import deepcopy

from tests.histories.record import Event


def lose(events: list[Event]) -> list[Event]:
    """A confirmed message is never delivered."""
    victim = next(e["value"]["message"] for e in events if (e["f"], e["type"]) == ("publish", "ok"))
    return [e for e in events if e["f"] in ("publish", "drained") or e["value"]["message"] != victim]


def double(events: list[Event]) -> list[Event]:
    """A message is there twice, with two ids."""
    first, second = (e for e in events if e["f"] == "deliver" and e["process"] == _a_delivery(events))
    more = [deepcopy(e) | {"process": -1} for e in (first, second)]
    for event in more:
        event["value"]["id"] += "0"
    return [*events, *more]


def come_back(events: list[Event]) -> list[Event]:
    """A message is delivered after its ack was confirmed."""
    ack = next(e for e in events if (e["f"], e["type"]) == ("ack", "ok"))
    late = max(e["time"] for e in events if e["f"] != "drained") + 1
    delivery = [deepcopy(e) for e in events if e["f"] == "deliver" and e["value"]["message"] == ack["value"]["message"]]
    return [*events, *(e | {"process": -1, "time": late} for e in delivery[:2])]


def swap(events: list[Event]) -> list[Event]:
    """Two messages of a key are delivered and acked in each other's place."""
    acked = [e["value"] for e in events if (e["f"], e["type"]) == ("ack", "ok") and e["value"]["key"] == "k0"]
    one, two = acked[0], acked[-1]
    other = {one["message"]: two["message"], two["message"]: one["message"]}
    ids = {e["value"]["message"]: e["value"]["id"] for e in events if e["f"] == "deliver"}
    changed = deepcopy(events)
    for event in changed:
        if event["f"] in ("deliver", "ack") and event["value"]["message"] in other:
            event["value"]["message"] = other[event["value"]["message"]]
            if event["f"] == "deliver":
                event["value"]["id"] = ids[event["value"]["message"]]
    return changed


def _a_delivery(events: list[Event]) -> int:
    return next(int(e["process"]) for e in events if e["f"] == "deliver")


PLANTS = [lose, double, come_back, swap]
