"""``except Exception`` stands only where a bug of ours must end one piece of work and not the broker."""

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"

BROAD = {
    "skep/broker/dispatch.py": "any failure of a handler becomes UNKNOWN_SERVER_ERROR and one traceback",
    "skep/base/loop/supervisor.py": "a job that failed runs again at its next turn",
    "skep/base/loop/slicer.py": "passes what the work raised to the future of the work",
    "skep/base/log_queue.py": "a line that cannot be formatted does not end what it is about, as in logging's handlers",
    "skep/server/connection.py": "a refusal that failed itself closes the connection; the client would wait forever",
    "skep/app.py": "membership ends only with the broker",
    "skep/metadata/current_image.py": "one callback that fails keeps the image from no other",
    "skep/replication/follower/fetcher.py": "every partition followed from a broker depends on this one task",
    "skep/replication/isr_updater.py": "puts back what was not done, and raises",
    "skep/coordination/active_shard.py": "unloads a shard whose state may differ from its log, or retries its timer",
    "skep/coordination/coordinator_runtime.py": "retries to load a shard",
    "skep/queue/lane.py": "a queue consumer whose thread has failed ends, and raises what the thread raised",
    "skep/queue/asker.py": "requests fail at once when the thread that reads the answers has failed",
    "skep/queue/answer.py": "whatever a handler raises is the answer to its asker",
    "skep/worker/held/held_job.py": "a held partition that failed is begun again, and keeps no other from its work",
    "skep/cli/spark/pipeline_definitions.py": "the user's code may raise anything",
    "skep/cli/spark/spark_driver.py": "looks in the cause of any failure for the end of Spark's JVM",
}


def is_broad(handler: ast.ExceptHandler) -> bool:
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or (isinstance(kind, ast.Name) and kind.id == "Exception") for kind in caught)


def broad_excepts(tree: ast.AST) -> list[int]:
    return [node.lineno for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and is_broad(node)]


def test_except_exception_has_a_reason() -> None:
    for path in sorted(SOURCE.rglob("*.py")):
        if str(path.relative_to(SOURCE)) not in BROAD:
            assert broad_excepts(ast.parse(path.read_text())) == [], f"{path} catches Exception without a reason here"


def test_a_broad_except_is_found() -> None:
    tree = ast.parse("try: x\nexcept OSError: y\nexcept (KeyError, Exception): z\nexcept: w")
    assert broad_excepts(tree) == [3, 4]
