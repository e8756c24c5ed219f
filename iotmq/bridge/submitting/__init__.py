"""Say what spark-submit is told, and what executors get."""
