"""Find the rules whose topics have something in common with a topic or a filter.

Operations: one call for each topic that is new to a connection, and for each filter of a SUBSCRIBE. Goal: a hundred
rules in some microseconds. Plan: levels are compared as they stand in the rules; a placeholder is filled once in a
call, when the levels before it fit.
"""


cdef class Clause:
    """One topic of one rule. `levels` are text, or topic_template.Place."""

    cdef readonly object rule
    cdef readonly tuple levels
    cdef readonly bint is_deny

    def __init__(self, rule not None, tuple levels not None):
        self.rule = rule
        self.levels = levels
        self.is_deny = not rule.is_allow


def fitting(tuple clauses not None, list wanted not None, subject not None):
    """Return those that fit a topic, or some topic of a filter, in their order; `wanted` are its levels."""
    cdef Clause clause
    cdef dict values_of = {}
    cdef list found = []
    for clause in clauses:
        if _fits(clause, wanted, values_of, subject):
            found.append(clause)
    return found


cdef bint _fits(Clause clause, list wanted, dict values_of, object subject) except -1:
    cdef Py_ssize_t count = len(clause.levels)
    cdef Py_ssize_t wanted_count = len(wanted)
    cdef Py_ssize_t at
    for at in range(count):
        own = clause.levels[at]
        if at == wanted_count:
            return type(own) is str and own == "#"
        other = wanted[at]
        if type(own) is not str:
            values = values_of.get(own)
            if values is None:
                values = values_of[own] = own.values(subject)
            if values:
                if other == "#":
                    return True
                if other != "+" and other not in values:
                    return False
                continue
            if not clause.is_deny:
                return False
            own = "+"
        if own == other:
            if own == "#":
                return True
            continue
        if not at and _is_hidden(own, other):
            return False
        if own == "#" or other == "#":
            return True
        if own != "+" and other != "+":
            return False
    return wanted_count == count or wanted_count == count + 1 and wanted[count] == "#"


cdef bint _is_hidden(str own, str other) except -1:
    """Return whether one first level is a wildcard and the other one not for it [MQTT-4.7.2-1]."""
    return own in ("+", "#") and other.startswith("$") or other in ("+", "#") and own.startswith("$")
