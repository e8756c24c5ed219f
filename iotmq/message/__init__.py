"""Define messages for all parts: properties, tags, ids, hosts and, in `records`, the stored record."""
