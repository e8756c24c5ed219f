"""The PySpark data source and ready-made jobs."""
