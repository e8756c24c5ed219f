"""Ready-made Spark jobs, programs of their own: ``python -m iotmq.bridge.jobs.NAME`` or ``spark-submit``."""
