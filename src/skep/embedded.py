"""What an ``EmbeddedBroker`` runs: ``python -m skep.embedded name=value ...``; ends when its standard input does.

Apart from ``skep serve`` so that nothing of the command line has to be imported, and so that a test run that is killed
leaves no broker behind: the pipe to it breaks, and it stops.
"""

import sys


def main() -> int:
    # kio imports hypothesis where it is installed, as it is beside most test suites; a broker has no use for it.
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]
    from skep.app import run

    return run(dict(argument.split("=", 1) for argument in sys.argv[1:]), stop_at_eof=True)


if __name__ == "__main__":
    raise SystemExit(main())
