"""Interceptors that come with the client: RocketMQ's message trace, and OpenTelemetry."""
