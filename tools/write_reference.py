"""Write the reference of all settings into docs/operating.md."""

from __future__ import annotations

from pathlib import Path

from iotmq.config import Config
from iotmq.setting_text import reference

BEGIN = "<!-- reference: begin -->\n"
END = "<!-- reference: end -->\n"
DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "operating.md"


def with_reference(text: str) -> str:
    """`text` with what stands between the two marks made new."""
    head, rest = text.split(BEGIN, 1)
    tail = rest.split(END, 1)[1]
    return f"{head}{BEGIN}\n{reference(Config)}\n{END}{tail}"


if __name__ == "__main__":
    DOCUMENT.write_text(with_reference(DOCUMENT.read_text()))
