"""Keep Locust from turning the sockets and threads of the tests' process into gevent's."""

from __future__ import annotations

import pytest

with pytest.MonkeyPatch.context() as _patch:
    # Read where Locust is imported first; processes that tests start must not inherit it.
    _patch.setenv("LOCUST_SKIP_MONKEY_PATCH", "1")
    import locust  # noqa: F401
