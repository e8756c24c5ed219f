"""Ways to tell people of alarms."""
