"""The processes themselves: cluster, health, settings, alarms, history. Start with `cluster`."""
