"""Run as a program, with a folder for the log: forgets Java objects while Spark's JVM stands still, for tests.

The JVM has to be killed, so whatever was sent to it in the end has no answer.
"""

import logging
import os
import signal
import sys
from pathlib import Path

import py4j.clientserver

from skep.cli.spark import spark_driver
from tests.waiting import wait_until


def main(folder: Path) -> None:
    py4j.clientserver.DEFAULT_WORKER_SLEEP_TIME = 0.01
    spark_driver.JVM_STOP_TIMEOUT_S = 3.0
    with (
        (folder / "spark.log").open("wb") as log,
        spark_driver.spark_driver({"spark.master": "local[1]"}, log) as spark,
    ):
        # What py4j complains about is to be seen here.
        logging.getLogger().filters.clear()
        given_back = spark._gateway._gateway_client.finalizer_deque
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "Ctrl-C asks no JVM either"
        # When the second is taken, the first was answered: there is a connection for these.
        forgotten = [spark._jvm.java.lang.StringBuilder() for _ in range(2)]
        forgotten.clear()
        wait_until(lambda: not given_back, "py4j has taken both")
        forgotten = [spark._jvm.java.lang.StringBuilder() for _ in range(3)]
        os.kill(spark._gateway.proc.pid, signal.SIGSTOP)
        forgotten.clear()
    wait_until(lambda: not given_back, "py4j has tried to give all objects back")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
