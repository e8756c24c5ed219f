"""The offsets of a group: at its brokers, or in a file; and what moves them. Start with `group_offsets`."""
