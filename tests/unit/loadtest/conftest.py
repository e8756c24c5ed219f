"""Keep Locust from turning the sockets and threads of the tests' process into gevent's."""

from __future__ import annotations

import os

os.environ.setdefault("LOCUST_SKIP_MONKEY_PATCH", "1")
