"""Event masks of `rebind --remove-mask`. Pure, and linear in what is matched: no regular expression.

A mask works only for events with dots. It must match the whole name; `*` stands for any run of
characters, also none, but for dots: `user.*.connected` takes `user.123.connected`, and `e3.*` does not
take `e3.1.u`.
"""

from __future__ import annotations


def matches(mask: str, event: str) -> bool:
    """Return whether the mask takes the event."""
    if "." not in event:
        return False
    masks, parts = mask.split("."), event.split(".")
    return len(masks) == len(parts) and all(map(_part_matches, masks, parts))


def _part_matches(mask: str, part: str) -> bool:
    """Match what stands between two dots. The leftmost place for each piece leaves most to the rest."""
    first, *middles = mask.split("*")
    if not middles:
        return mask == part
    last = middles.pop()
    end = len(part) - len(last)
    place = len(first)
    if end < place or not part.startswith(first) or not part.endswith(last):
        return False
    for middle in middles:
        found = part.find(middle, place, end)
        if found < 0:
            return False
        place = found + len(middle)
    return True
