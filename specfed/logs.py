"""What a server or node says while it runs: for people, or as one JSON object a line."""

import json
import re
import sys
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_FLOWER = re.compile(
    r"(?:\d{4}-\S+Z )?(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)\s*(?:\[[\w.]+\])?\s*:?\s*(?P<text>.*)"
)


@dataclass
class Log:
    """Says things in one format. Threads may use it at the same time."""

    json: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _level: str = "info"  # of the last line of another process; lines that have none continue it

    def say(self, text: str) -> None:
        """Something that the operator may want to know."""
        self._write("info", "specfed", text, text)

    def warn(self, text: str) -> None:
        """Something that the operator should look at."""
        self._write("warning", "specfed", text, f"warning: {text}")

    def error(self, text: str) -> None:
        """Why the command ends."""
        self._write("error", "specfed", text, f"error: {text}")

    def relay(self, line: str) -> None:
        """A line that one of Flower's processes printed."""
        if not self.json:
            shown = line if sys.stdout.isatty() else _COLOUR.sub("", line)
            self._write(self._level, "flower", shown, shown)
            return
        text = _COLOUR.sub("", line).strip()
        match = _FLOWER.fullmatch(text)
        if match:
            self._level, text = match["level"].lower(), match["text"]
        if text:
            self._write(self._level, "flower", text, text)

    def _write(self, level: str, source: str, text: str, human: str) -> None:
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        record = {"time": time, "level": level, "source": source, "message": text}
        own = source == "specfed" and level != "info" and not self.json
        with self._lock:
            line = json.dumps(record, ensure_ascii=False) if self.json else human
            print(line, file=sys.stderr if own else sys.stdout, flush=True)
