"""Nothing here is for Python: `send_frames` and `pull_frames` read frames with it."""
