"""``skep tls``: make an authority and certificates, sign further ones, and show what a certificate says."""

import datetime
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from skep.cli import output
from skep.cli.failures import CommandError
from skep.cli.tls.client_settings import broker_options, client_settings
from skep.security.tls.certificate_authority import (
    AUTHORITY_DAYS,
    DEFAULT_DAYS,
    LOCAL_HOSTS,
    CertificateAuthority,
    CertificateProblem,
    check_days,
    check_host,
    check_name,
    summary_of,
)

BROKER = "broker"

Days = Annotated[int, typer.Option("--days", metavar="N", help="How long certificates are valid.")]
Hosts = Annotated[
    list[str] | None,
    typer.Option("--host", metavar="NAME", help="A host name or address that clients use. Repeatable."),
]


def register(app: typer.Typer) -> None:
    tls = typer.Typer(no_args_is_help=True, help="Make and show certificates for TLS.")
    tls.command("init")(init)
    tls.command("sign")(sign)
    tls.command("show")(show)
    app.add_typer(tls, name="tls")


def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write; created if missing.")],
    hosts: Hosts = None,
    clients: Annotated[
        list[str] | None,
        typer.Option("--client", metavar="NAME", help="Make a certificate for a client, too. Repeatable."),
    ] = None,
    days: Days = DEFAULT_DAYS,
) -> None:
    """Make an authority and the certificates of a broker and clients.

    DIR gets ca.pem (the authority, for everybody), ca.key (its key: keep it off the brokers), broker.pem and NAME.pem
    for each client, with certificate and key in one file. The broker's certificate is for localhost, 127.0.0.1 and each
    --host; without --host, also for this machine's name. Brokers of a cluster can share one: name all hosts. Nothing is
    overwritten. The command prints the options of the broker and of its clients.

    \b
    Examples:
      skep tls init tls
      skep tls init tls --host broker1.example.org --host broker2.example.org --client alice
    """
    wanted = list(dict.fromkeys([*LOCAL_HOSTS, *(hosts or [socket.gethostname()])]))
    names = list(dict.fromkeys(clients or ()))
    try:
        check_days(days)
        for host in wanted:
            check_host(host)
        _check_free(directory, [BROKER, *names])
        authority = CertificateAuthority.create(directory, days=max(days, AUTHORITY_DAYS))
        broker = authority.sign_broker(wanted, days=days)
        signed = [authority.sign_client(name, days=days) for name in names]
    except CertificateProblem as problem:
        raise CommandError(str(problem)) from None
    output.line(f"{authority.certificate_file}  the authority; clients and brokers trust what it signed")
    output.line(f"{directory / 'ca.key'}  its key; keep it secret, no broker needs it")
    output.line(f"{broker}  certificate and key of the broker, for {', '.join(wanted)}")
    for name, path in zip(names, signed, strict=True):
        output.line(f"{path}  certificate and key of the client User:CN={name}")
    output.line()
    keystore = signed[0] if signed else None
    advertised = hosts[0] if hosts else None
    output.line(broker_options(authority.certificate_file, broker, advertised, with_clients=bool(signed)))
    output.line(client_settings(authority.certificate_file, keystore, advertised))


def sign(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of skep tls init.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The common name, and the name of the file.")],
    hosts: Hosts = None,
    days: Days = DEFAULT_DAYS,
    renew: Annotated[bool, typer.Option("--renew", help="Replace DIR/NAME.pem if it exists.")] = False,
) -> None:
    """Sign one more certificate: a client's, or with --host a broker's.

    With --renew it replaces the old file in one step, with a new key. A broker reads it again when it is told to; see
    docs/SECURITY.md.

    \b
    Examples:
      skep tls sign tls bob
      skep tls sign tls broker --host broker1.example.org --renew
    """
    try:
        authority = CertificateAuthority.load(directory)
        if hosts:
            path = authority.sign_broker([*LOCAL_HOSTS, *hosts], name=name, days=days, renew=renew)
        else:
            path = authority.sign_client(name, days=days, renew=renew)
    except CertificateProblem as problem:
        raise CommandError(str(problem)) from None
    output.line(f"{path}")


def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A PEM file.")],
    as_json: output.Json = False,
) -> None:
    """Show subject, names and expiry of a certificate.

    \b
    Examples:
      skep tls show tls/broker.pem
    """
    try:
        summary = summary_of(file)
    except CertificateProblem as problem:
        raise CommandError(str(problem)) from None
    left = (summary.not_after - datetime.datetime.now(datetime.UTC)).days
    if as_json:
        output.document(
            {
                "subject": summary.subject,
                "issuer": summary.issuer,
                "names": list(summary.names),
                "notBefore": summary.not_before.isoformat(),
                "notAfter": summary.not_after.isoformat(),
                "daysLeft": left,
                "isAuthority": summary.is_authority,
            }
        )
        return
    output.line(f"subject  {summary.subject}" + ("  (an authority)" if summary.is_authority else ""))
    output.line(f"issuer   {summary.issuer}")
    output.line(f"names    {', '.join(summary.names) or 'none: it is no certificate of a server'}")
    period = f"{summary.not_before:%Y-%m-%d %H:%M} to {summary.not_after:%Y-%m-%d %H:%M} UTC"
    if left < 0:
        output.alarm(f"valid    {period}, expired")
    else:
        output.line(f"valid    {period}, {output.count(left, 'day')} left")


def _check_free(directory: Path, names: Sequence[str]) -> None:
    """Raises CertificateProblem if a later step would fail, before the first file is written."""
    for name in names:
        check_name(name)
        if name == BROKER and names.count(BROKER) > 1:
            raise CertificateProblem(f"--client {BROKER}: that name is taken by the broker's certificate")
        if (directory / f"{name}.pem").exists():
            raise CertificateProblem(f"{directory / name}.pem exists already and is not overwritten")
