"""Ready-made Spark jobs: run with ``python -m iotmq.bridge.jobs.NAME`` or ``spark-submit``."""
