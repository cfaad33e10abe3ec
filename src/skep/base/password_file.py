"""Files with a password: one line, or nothing but the password."""

from pathlib import Path

from skep.base.errors import OptionError
from skep.base.secret import Secret

MAX_FILE_BYTES = 4096


def read_password_file(path: Path, option: str) -> Secret:
    """Returns the one line of the file. Raises OptionError, which names the option and the file, not what is in it."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise OptionError(f"{option} {path}: {error.strerror}") from None
    return password_of(content, f"{option} {path}")


def password_of(content: bytes, origin: str) -> Secret:
    """Returns the one line of ``content``, without its line end."""
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError:
        raise OptionError(f"{origin}: the password is not UTF-8") from None
    if len(content) > MAX_FILE_BYTES or len(lines) > 1:
        raise OptionError(f"{origin}: expected one line with the password")
    if not lines or not lines[0]:
        raise OptionError(f"{origin}: it is empty")
    return Secret(lines[0])
