"""Messages and their places: topics, groups, streams, delayed ones, dead letters. Start with `messages`."""
