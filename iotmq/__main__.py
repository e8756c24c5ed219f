"""`python -m iotmq` is the `iotmq` command."""

import sys

from iotmq.commands.cli import main

sys.exit(main())
