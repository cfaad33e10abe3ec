"""The host of jobs: who gets which message, and how replies are written."""

import io
import json

from skep.worker.job import Settings
from skep.worker.worker_host import WorkerHost

SETTINGS = Settings("127.0.0.1:9092", "/nowhere", 1)


class Recorder:
    made = 0

    def __init__(self, settings):
        Recorder.made += 1
        self.received, self.is_closed = [], False

    def receive(self, message, reply):
        self.received.append(message)
        reply({"sum": sum(message.get("numbers", ()))})

    def close(self):
        self.is_closed = True


class Trickle(io.BytesIO):
    """A pipe that takes three bytes at a time."""

    def write(self, data):
        return super().write(data[:3])


def replies(stream):
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_request_is_answered_under_its_id_and_a_state_is_not():
    stream = Trickle()
    host = WorkerHost(SETTINGS, {"add": Recorder}, stream)
    before = Recorder.made
    host.receive({"job": "add", "state": 1})
    host.receive({"job": "add", "id": 7, "numbers": [1, 2]})
    assert replies(stream) == [{"id": 7, "error": None, "sum": 3}]
    assert Recorder.made == before + 1


def test_a_job_that_does_not_exist_is_an_error_and_no_end():
    stream = io.BytesIO()
    host = WorkerHost(SETTINGS, {}, stream)
    host.receive({"job": "brew", "id": 1})
    host.receive({"job": "brew"})
    assert replies(stream) == [{"id": 1, "error": "the worker has no job 'brew'"}]


def test_closing_closes_the_jobs_that_were_made():
    made = []

    def make(settings):
        made.append(Recorder(settings))
        return made[-1]

    host = WorkerHost(SETTINGS, {"add": make, "other": make}, io.BytesIO())
    host.receive({"job": "add"})
    host.close()
    assert [job.is_closed for job in made] == [True]
