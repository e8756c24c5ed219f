"""Tags: the hash a queue entry holds, and the expressions consumers filter with."""

from __future__ import annotations

from iotmq.message.records.record import hash_text


def tag_hash(tag: str) -> int:
    """Java's String.hashCode of the tag: 31 * h + unit over UTF-16 units, wrapped to int32."""
    return hash_text(tag.encode("utf-8", "replace"))


def expression_tags(expression: str) -> tuple[str, ...]:
    """Return the tags of a filter such as `TagA || TagB`, in order; empty for all (`*` or nothing)."""
    if expression.strip() in ("", "*"):
        return ()
    tags = (tag.strip() for tag in expression.split("||"))
    return tuple(dict.fromkeys(tag for tag in tags if tag))


def expression_codes(expression: str) -> frozenset[int] | None:
    """Return the tag hashes a filter lets pass; None when it lets everything pass."""
    tags = expression_tags(expression)
    return frozenset(map(tag_hash, tags)) if tags else None
