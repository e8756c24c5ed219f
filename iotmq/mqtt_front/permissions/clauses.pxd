from libc.stdint cimport uint8_t


cdef enum Kind:
    LITERAL = 0
    ANY_LEVEL = 1       # +
    ANYTHING = 2        # #
    PLACE = 3           # topic_template.Place


cdef enum:
    RULE_LEVELS_MAX = 32        # MQTT_WILDCARD_LEVELS_MAX
    TOPIC_LEVELS_MAX = 128      # MQTT_TOPIC_LEVELS_MAX


cdef class Clause:
    cdef readonly object rule
    cdef readonly tuple levels          # text, or topic_template.Place
    cdef readonly bint is_deny
    cdef uint8_t kinds[RULE_LEVELS_MAX]
    cdef bint is_dollar                 # it begins with $, and is not for wildcards in the first level
