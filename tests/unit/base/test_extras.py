"""The command that installs an optional dependency works as it is printed."""

from skep.base.extras import command_for


def test_a_clone_that_pip_knows_is_named() -> None:
    origin = '{"dir_info": {"editable": true}, "url": "file:///home/ann/my%20clone"}'
    assert command_for("spark", origin) == 'pip install -e "/home/ann/my clone[spark]"'


def test_a_copy_from_a_clone_is_installed_as_a_copy_again() -> None:
    assert command_for("arrow", '{"dir_info": {}, "url": "file:///skep"}') == 'pip install "/skep[arrow]"'


def test_without_a_known_clone_the_command_is_for_one() -> None:
    wheel = '{"archive_info": {}, "url": "file:///skep-0.1.0-py3-none-any.whl"}'
    for origin in (None, wheel):
        assert command_for("zookeeper", origin) == 'pip install ".[zookeeper]" in a clone of Skep'
