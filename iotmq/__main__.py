"""`python -m iotmq` is the `iotmq` command."""

import sys

from iotmq.cli import main

sys.exit(main())
