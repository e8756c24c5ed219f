"""Consumers that are asked for messages: `queue_fetch` fetches one queue ahead, `pull_queues` is the line."""
