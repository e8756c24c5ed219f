"""What a load test found, in words: what went wrong, and what its counts do not tell."""

from collections import Counter
from typing import Any

from loadtest.swarm import VIOLATIONS
from loadtest.swarm.plan import Plan
from loadtest.swarm.reach import deliveries_of

# Lateness of the load generator that is worth a word: so long, and so much of what was measured.
_LATE_NS = 1_000_000
_LATE_SHARE = 0.5


def missing_of(plan: Plan, totals: Counter[str]) -> int | None:
    """Deliveries that should be there and are not; of QoS 1 and 2 those of acknowledged messages.

    None where nobody can tell how many there should be.
    """
    copies = deliveries_of(plan)
    if copies is None:
        return None
    were_away = not plan.keeps_sessions and totals["left"] + totals["reconnected"] > 0
    if copies and (were_away or totals["resubscribed"]):
        return None
    sent = totals["acknowledged"] - totals["acks_refused"] if plan.qos else totals["published"]
    return max(0, copies * sent - (totals["delivered"] - totals["sequence_repeats"]))


def verdict_of(plan: Plan, result: dict[str, Any], *, p99_ms_max: float | None) -> list[str]:
    """What went wrong, a sentence each; nothing when all is well."""
    counters, connect = result["counters"], result["connect"]
    wrong = []
    if connect["ready"] < connect["wanted"]:
        absent = connect["wanted"] - connect["ready"]
        wrong.append(f"{absent} of {connect['wanted']} connections did not get in")
    for kind, count in result["ends"]["lost"].items():
        wrong.append(f"{count} connections were lost: {kind}")
    if counters["acks_refused"]:
        wrong.append(f"{counters['acks_refused']} messages were refused")
    qos = _lowest_qos(plan)
    # A server may drop what was published or asked for with QoS 0.
    allowed = set() if qos else {"sequence_gaps"}
    if qos == 1 and counters["reconnected"] + counters["left"]:
        # Its acknowledgement may have been on the way when a connection ended.
        allowed.add("sequence_repeats")
    wrong += [f"{name} is {counters[name]}" for name in VIOLATIONS if counters[name] and name not in allowed]
    if result["missing"] and qos:
        wrong.append(f"{result['missing']} deliveries are missing")
    if result["outstanding"]:
        wrong.append(f"{result['outstanding']} messages were not acknowledged in time")
    if result["unsent"]:
        reason = (
            f": {plan.rate_per_s} a second are more than the server takes, or than the load generator makes"
        )
        wrong.append(
            f"{result['unsent']} messages were due and could not be sent in time"
            f"{'' if result['ends']['lost'] else reason}"
        )
    return wrong + _too_slow(result, p99_ms_max)


def _too_slow(result: dict[str, Any], p99_ms_max: float | None) -> list[str]:
    if p99_ms_max is None:
        return []
    for kind in ("delivery", "acknowledgement"):
        times = result["latencies"].get(kind)
        if times and times["count"]:
            p99_ms = times["p99_ns"] / 1e6
            return [f"p99 is {p99_ms:.3f} ms, more than {p99_ms_max} ms"] if p99_ms > p99_ms_max else []
    return ["no time was measured that p99 could be taken of"]


def notes_of(plan: Plan, result: dict[str, Any], *, tracks_sequences: bool) -> list[str]:
    """What is no failure and has to be known, a sentence each."""
    counters, notes = result["counters"], []
    if not _lowest_qos(plan) and (lost := max(result["missing"] or 0, counters["sequence_gaps"])):
        notes.append(f"{lost} deliveries of QoS 0 are missing, which a server may drop")
    if counters["delivered_unstamped"]:
        notes.append(
            f"{counters['delivered_unstamped']} messages came without a stamp: neither their times nor their "
            "order were checked"
        )
    if plan.subscribers and plan.publishers and not tracks_sequences:
        notes.append("gaps and repeats were not looked for: publishers times subscribers are too many")
    if result["missing"] is None:
        notes.append(
            "how many deliveries there should be cannot be told, since subscribers came and went, or some "
            "topics have none: only gaps between messages that came were looked for"
        )
    late_ns = _p99_ns(result, "send_delay")
    if late_ns > _LATE_NS and late_ns > _LATE_SHARE * max(
        _p99_ns(result, "delivery"), _p99_ns(result, "acknowledgement")
    ):
        notes.append(
            f"the load generator itself was late, which is in the times of messages: p99 of send_delay is "
            f"{late_ns / 1e6:.1f} ms"
        )
    return notes


def _lowest_qos(plan: Plan) -> int:
    return min(plan.qos, plan.qos if plan.filter_qos is None else plan.filter_qos)


def _p99_ns(result: dict[str, Any], kind: str) -> float:
    times = result["latencies"].get(kind)
    return float(times["p99_ns"]) if times and times["count"] else 0.0
