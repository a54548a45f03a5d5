"""Lines for people and lines for machines."""

import json
from datetime import datetime

import pytest

from specfed.logs import Log

FLOWER = [
    "\x1b[92mINFO \x1b[0m:      Starting Flower SuperNode",
    "INFO:     Waiting for application startup.",
    "\x1b[91mERROR \x1b[0m:     Exit Code: 305",
    "Failed to initialize the connection.",
    "",
    "2026-11-29T20:17:52.940Z WARNING [uvicorn.error] slow: \u201cvery\u201d",
]


def test_json_lines_have_a_time_a_level_and_a_source(capsys: pytest.CaptureFixture[str]) -> None:
    log = Log(json=True)
    log.say("ready")
    log.warn("soon")
    log.error("gone")
    for line in FLOWER:
        log.relay(line)
    out, err = capsys.readouterr()
    records = [json.loads(line) for line in out.splitlines()]
    assert err == "" and all(datetime.fromisoformat(record["time"]).tzinfo for record in records)
    assert [(r["level"], r["source"], r["message"]) for r in records] == [
        ("info", "specfed", "ready"),
        ("warning", "specfed", "soon"),
        ("error", "specfed", "gone"),
        ("info", "flower", "Starting Flower SuperNode"),
        ("info", "flower", "Waiting for application startup."),
        ("error", "flower", "Exit Code: 305"),
        ("error", "flower", "Failed to initialize the connection."),
        ("warning", "flower", "slow: \u201cvery\u201d"),
    ]


def test_people_read_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    log = Log()
    log.say("ready")
    log.warn("soon")
    log.relay(FLOWER[0])
    out, err = capsys.readouterr()
    assert out == "ready\nINFO :      Starting Flower SuperNode\n"
    assert err == "warning: soon\n"
