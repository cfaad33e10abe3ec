"""``skep users``: create, list, describe and delete users, and change their passwords.

A password comes from a file, from standard input, or from a question that does not show the reply. Not from an
argument: arguments are in the list of processes and in the history of the shell.
"""

import getpass
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from skep.base.errors import OptionError
from skep.base.password_file import MAX_FILE_BYTES, password_of, read_password_file
from skep.base.secret import Secret
from skep.cli import output
from skep.cli.connection import DEFAULT_BOOTSTRAP, Bootstrap, Properties, cluster_of
from skep.cli.failures import CommandError, UsageError
from skep.cli.output import Json
from skep.cli.skep_client import skep_client
from skep.cli.users import user_admin
from skep.cli.users.user_admin import DEFAULT_ITERATIONS, MECHANISMS, User, checked_mechanisms
from skep.wire.sasl.scram_keys import SCRAMS

STANDARD_INPUT = Path("-")
Name = Annotated[str, typer.Argument(metavar="USER")]
Mechanisms = Annotated[
    list[str] | None,
    typer.Option(
        "--mechanism", "-m", metavar="NAME", help=f"One of {', '.join(MECHANISMS)}. Repeatable. [default: both SCRAMs]"
    ),
]
PasswordFile = Annotated[
    Path | None,
    typer.Option("--password-file", metavar="FILE", help="Read the password from this file; - is standard input."),
]
Iterations = Annotated[
    int, typer.Option("--iterations", min=4096, max=16384, metavar="N", help="How often SCRAM hashes the password.")
]


def register(app: typer.Typer) -> None:
    users = typer.Typer(
        no_args_is_help=True, rich_markup_mode=None, help="Create, list and delete users, change passwords."
    )
    commands: dict[str, Callable[..., None]] = {
        "create": create,
        "list": list_all,
        "describe": describe,
        "passwd": passwd,
        "delete": delete,
    }
    for name, command in commands.items():
        users.command(name)(command)
    app.add_typer(users, name="users")


def create(
    name: Name,
    mechanisms: Mechanisms = None,
    password_file: PasswordFile = None,
    iterations: Iterations = DEFAULT_ITERATIONS,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Create a user that logs in with a password.

    The password is asked for, or read from --password-file (one line), or from standard input if that is not a
    terminal. It is never part of the command line, which other users of the machine can see, and it is not sent: the
    cluster gets what it needs to recognize it. PLAIN, which sends the password at each login, has to be asked for.

    \b
    Examples:
      skep users create alice
      skep users create alice --mechanism SCRAM-SHA-512 --password-file alice.txt
      skep users create alice -m PLAIN -m SCRAM-SHA-256 < alice.txt
    """
    wanted = checked_mechanisms(mechanisms or SCRAMS)
    with skep_client(cluster_of(bootstrap, properties)) as client:
        if any(user.name == name for user in user_admin.list_users(client)):
            raise CommandError(f"user '{name}' exists already; to change the password: skep users passwd {name}")
        user_admin.set_password(client, name, _read_password(name, password_file), wanted, iterations)
    output.line(f"Created user {name} for {', '.join(wanted)}.")


def list_all(json: Json = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, properties: Properties = None) -> None:
    """List users with the mechanisms that they can log in with.

    \b
    Examples:
      skep users list
      skep users list --json | jq -r '.[].user'
    """
    with skep_client(cluster_of(bootstrap, properties)) as client:
        users = user_admin.list_users(client)
    if json:
        output.document([_as_json(user) for user in users])
    elif users:
        output.table(("user", "mechanisms"), [(user.name, ", ".join(user.mechanisms)) for user in users])
    else:
        output.note("There are no users. To create one: skep users create USER")


def describe(
    name: Name, json: Json = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, properties: Properties = None
) -> None:
    """Show how a user can log in. Passwords, salts and keys are not shown by any command.

    \b
    Examples:
      skep users describe alice
    """
    with skep_client(cluster_of(bootstrap, properties)) as client:
        user = user_admin.find_user(client, name)
    if json:
        output.document(_as_json(user))
        return
    output.line(f"user {user.name}")
    for mechanism, iterations in user.mechanisms.items():
        output.line(f"  {mechanism}" + ("" if iterations is None else f", {iterations} iterations"))


def passwd(
    name: Name,
    mechanisms: Mechanisms = None,
    password_file: PasswordFile = None,
    iterations: Iterations = DEFAULT_ITERATIONS,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Change the password of a user.

    It counts for all mechanisms that the user has, or for those that are named with --mechanism.

    Connections of the user are closed, and its clients log in again: with the new password, or not at all.

    \b
    Examples:
      skep users passwd alice
      skep users passwd alice --mechanism PLAIN --password-file alice.txt
    """
    with skep_client(cluster_of(bootstrap, properties)) as client:
        user = user_admin.find_user(client, name)
        wanted = checked_mechanisms(mechanisms or user.mechanisms)
        user_admin.set_password(client, name, _read_password(name, password_file), wanted, iterations)
    output.line(f"Changed the password of user {name} for {', '.join(wanted)}.")


def delete(
    name: Name,
    mechanisms: Annotated[
        list[str] | None,
        typer.Option("--mechanism", "-m", metavar="NAME", help="Only for this mechanism. Repeatable. [default: all]"),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Delete a user. Its connections are closed. Its ACLs and quotas stay.

    \b
    Examples:
      skep users delete alice
      skep users delete alice --mechanism PLAIN
    """
    with skep_client(cluster_of(bootstrap, properties)) as client:
        user = user_admin.find_user(client, name)
        wanted = checked_mechanisms(mechanisms or user.mechanisms)
        if missing := [one for one in wanted if one not in user.mechanisms]:
            raise CommandError(f"user '{name}' has no {missing[0]}; it has {', '.join(user.mechanisms)}")
        user_admin.remove_mechanisms(client, name, wanted)
    left = [one for one in user.mechanisms if one not in wanted]
    output.line(f"Deleted {', '.join(wanted)} of user {name}." if left else f"Deleted user {name}.")


def _as_json(user: User) -> dict[str, object]:
    mechanisms = [
        {"mechanism": mechanism, **({} if iterations is None else {"iterations": iterations})}
        for mechanism, iterations in user.mechanisms.items()
    ]
    return {"user": user.name, "mechanisms": mechanisms}


def _read_password(user: str, path: Path | None) -> Secret:
    """Returns the new password of a user. A question is asked twice, since nobody sees what they type."""
    try:
        if path is not None and path != STANDARD_INPUT:
            return read_password_file(path, "--password-file")
        if path == STANDARD_INPUT or not sys.stdin.isatty():
            return password_of(sys.stdin.buffer.read(MAX_FILE_BYTES + 1), "standard input")
    except OptionError as error:
        raise UsageError(str(error)) from None
    first = Secret(getpass.getpass(f"Password of {user}: "))
    if not first:
        raise UsageError("the password is empty")
    if first != Secret(getpass.getpass("Once more: ")):
        raise CommandError("the two passwords differ; nothing was changed")
    return first
