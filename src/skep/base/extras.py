"""Optional dependencies: the command that installs one, for the error of a feature that needs it.

Skep is installed from a clone. It is not on PyPI, where pip would find nothing under its name. pip notes the folder
that a package was installed from (PEP 610), and the command names it.
"""

import json


def how_to_install(extra: str) -> str:
    """Returns ``pip install -e "/home/ann/skep[spark]"``, or what to type in a clone if the folder is not known."""
    # Not above: a broker that starts needs neither this nor urllib.
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        origin = distribution("skep").read_text("direct_url.json")
    except PackageNotFoundError:
        origin = None
    return command_for(extra, origin)


def command_for(extra: str, origin: str | None) -> str:
    """``origin`` is the content of pip's ``direct_url.json``; None if pip has not written one."""
    from urllib.parse import unquote, urlsplit

    url = json.loads(origin) if origin else {}
    if "dir_info" not in url:
        return f'pip install ".[{extra}]" in a clone of Skep'
    editable = "-e " if url["dir_info"].get("editable") else ""
    return f'pip install {editable}"{unquote(urlsplit(url["url"]).path)}[{extra}]"'
