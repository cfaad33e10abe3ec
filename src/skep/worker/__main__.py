"""``python -m skep.worker``, which the broker starts when it first needs it. The table of jobs is here."""

from skep.worker.dead_letter_job import DeadLetterJob
from skep.worker.held.held_job import HeldJob
from skep.worker.worker_host import JobTable, run

JOBS: JobTable = {"held": HeldJob, "dead-letters": DeadLetterJob}

if __name__ == "__main__":
    run(JOBS)
