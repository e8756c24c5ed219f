"""The HTTP port: metrics and health."""
