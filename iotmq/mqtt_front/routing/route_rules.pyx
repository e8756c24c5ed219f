"""Rules of a route for each of its messages, beside where they go: read without a Python object."""

from libc.stdint cimport uint32_t

from iotmq.mqtt.codec.publish_properties cimport PublishProperties
from iotmq.mqtt_front.routing.checksum cimport Checksum


cdef class RouteRules:
    """The rules of one route (settings.routes.RouteSettings), and where it is in its sample."""

    def __init__(self, settings not None, str route not None, Checksum checksum, str quarantine_topic not None):
        self.route = route
        self.checksum = checksum
        self.quarantine_topic = quarantine_topic
        self.refuses = settings.quarantine_answer == "refuse"
        self.is_dropped = settings.drop
        self.qos_max = settings.qos_max
        self.sample_one_in = settings.sample_one_in if settings.sample_by == "count" else 1
        self.expiry_s = settings.expiry_s
        self.expiry_s_max = settings.expiry_s_max

    cdef bint takes_next(self) noexcept:
        """Count a message, and return whether it is one of the sample: the first, and then each Nth."""
        if self.sample_one_in <= 1:
            return True
        self._seen += 1
        return self._seen % self.sample_one_in == 1

    def takes_another(self):
        """`takes_next` for callers in Python (tests)."""
        return bool(self.takes_next())

    def expiry_of(self, expiry_s):
        """Return the expiry interval that a message goes on with which has this one, or none (None)."""
        cdef PublishProperties properties
        properties.has_expiry = expiry_s is not None
        properties.expiry_s = 0 if expiry_s is None else expiry_s
        self.set_expiry(&properties)
        return properties.expiry_s if properties.has_expiry else None

    cdef int set_expiry(self, PublishProperties* properties) noexcept:
        """Give the message an expiry interval, or a shorter one."""
        cdef uint32_t longest = self.expiry_s_max
        if not properties.has_expiry and self.expiry_s:
            properties.has_expiry = True
            properties.expiry_s = self.expiry_s
        if longest and not (properties.has_expiry and properties.expiry_s <= longest):
            properties.has_expiry = True
            properties.expiry_s = longest
        return 0
