"""The audit log as a file: lines, rotation, disks that refuse."""

import json
import os

from skep.security.audit import audit_file
from skep.security.audit.audit_file import AuditFile


def record(number):
    return {"time": "2026-01-01T00:00:00.000Z", "event": "access", "number": number}


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_records_become_lines_that_only_the_owner_reads(tmp_path):
    path = tmp_path / "audit.jsonl"
    log = AuditFile(str(path))
    for number in range(3):
        log.put(record(number))
    log.close()
    assert [line["number"] for line in lines(path)] == [0, 1, 2]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_line_break_in_a_name_does_not_forge_a_line(tmp_path):
    path = tmp_path / "audit.jsonl"
    log = AuditFile(str(path))
    log.put({**record(0), "resource": 'a\n{"event": "access"}\u2028'})
    log.close()
    assert len(path.read_bytes().splitlines()) == 1


def test_a_file_that_was_renamed_is_opened_again(tmp_path):
    path = tmp_path / "audit.jsonl"
    log = AuditFile(str(path))
    log._write([record(0)])
    os.rename(path, tmp_path / "audit.1")
    log._write([record(1)])
    assert [line["number"] for line in lines(path)] == [1]
    assert [line["number"] for line in lines(tmp_path / "audit.1")] == [0]


def test_a_full_disk_loses_records_and_counts_them(tmp_path, monkeypatch, caplog):
    path = tmp_path / "audit.jsonl"
    log = AuditFile(str(path))
    log._write([record(0)])
    write = os.write

    def full(fd, data):
        write(fd, data[:5])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(audit_file.os, "write", full)
    log._write([record(1), record(2)])
    log._write([record(3)])
    assert caplog.text.count("cannot be written") == 1
    monkeypatch.setattr(audit_file.os, "write", write)
    log._write([record(4)])
    assert [(line["event"], line.get("count"), line.get("number")) for line in lines(path)] == [
        ("access", None, 0),
        ("dropped", 3, None),
        ("access", None, 4),
    ]
    assert log.dropped == 0


def test_a_directory_that_is_missing_does_not_stop_anybody(tmp_path, caplog):
    log = AuditFile(str(tmp_path / "missing" / "audit.jsonl"))
    log.put(record(0))
    log.close()
    assert "cannot be written" in caplog.text
    assert log.dropped == 1


def test_what_a_slow_disk_cannot_take_is_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(audit_file, "MAX_WAITING", 2)
    log = AuditFile(str(tmp_path / "audit.jsonl"))
    log._thread = object()  # nobody takes them
    for number in range(5):
        log.put(record(number))
    assert log.dropped == 3
