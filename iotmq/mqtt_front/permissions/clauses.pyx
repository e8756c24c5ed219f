"""Find the rules whose topics have something in common with a topic or a filter.

Operations: one call for each topic that is new to a connection, and for each filter of a SUBSCRIBE. Goal: a hundred
rules in some microseconds. Plan: levels are compared as they stand in the rules, by the kinds that are known of them; a
placeholder is filled once in a call, when the levels before it fit.
"""

from libc.stdint cimport uint8_t

from iotmq import limits
from iotmq.mqtt_front.permissions.topic_template import Place

assert RULE_LEVELS_MAX == limits.MQTT_WILDCARD_LEVELS_MAX
assert TOPIC_LEVELS_MAX == limits.MQTT_TOPIC_LEVELS_MAX


cdef uint8_t _kind_of(str level) except 255:
    return ANY_LEVEL if level == "+" else ANYTHING if level == "#" else LITERAL


cdef class Clause:
    """One topic of one rule."""

    def __init__(self, rule not None, tuple levels not None):
        if not 1 <= len(levels) <= RULE_LEVELS_MAX:
            raise ValueError(f"a topic of {len(levels)} levels")
        self.rule = rule
        self.levels = levels
        self.is_deny = not rule.is_allow
        for at, level in enumerate(levels):
            self.kinds[at] = PLACE if isinstance(level, Place) else _kind_of(level)
        self.is_dollar = self.kinds[0] == LITERAL and levels[0].startswith("$")


def fitting(tuple clauses not None, list wanted not None, subject not None):
    """Return those that fit a topic, or some topic of a filter, in their order; `wanted` are its levels."""
    cdef Clause clause
    cdef dict values_of = {}
    cdef list found = []
    cdef uint8_t kinds[TOPIC_LEVELS_MAX]
    cdef Py_ssize_t at
    if not 1 <= len(wanted) <= TOPIC_LEVELS_MAX:
        raise ValueError(f"a topic of {len(wanted)} levels")
    for at in range(len(wanted)):
        kinds[at] = _kind_of(wanted[at])
    cdef bint is_dollar = wanted[0].startswith("$")
    for clause in clauses:
        if _fits(clause, wanted, kinds, is_dollar, values_of, subject):
            found.append(clause)
    return found


cdef bint _fits(
    Clause clause, list wanted, const uint8_t* kinds, bint is_dollar, dict values_of, object subject
) except -1:
    cdef Py_ssize_t count = len(clause.levels)
    cdef Py_ssize_t wanted_count = len(wanted)
    cdef Py_ssize_t at
    cdef uint8_t own, other
    if is_dollar and clause.kinds[0] != LITERAL or clause.is_dollar and kinds[0] != LITERAL:
        return False    # [MQTT-4.7.2-1]; what fills a place does not begin with $ either
    for at in range(count):
        own = clause.kinds[at]
        if at == wanted_count:
            return own == ANYTHING
        other = kinds[at]
        if own == PLACE:
            place = clause.levels[at]
            values = values_of.get(place)
            if values is None:
                values = values_of[place] = place.values(subject)
            if values:
                if other == LITERAL and wanted[at] not in values:
                    return False
            elif not clause.is_deny:
                return False
            own = ANY_LEVEL     # the value fits, or every value is meant
        if own == ANYTHING or other == ANYTHING:
            return True
        if own == LITERAL and other == LITERAL and <str>clause.levels[at] != <str>wanted[at]:
            return False
    return wanted_count == count or wanted_count == count + 1 and kinds[count] == ANYTHING
