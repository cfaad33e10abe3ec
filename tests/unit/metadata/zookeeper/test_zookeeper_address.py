"""How the address of a ZooKeeper is read."""

import pytest

from skep.base.errors import OptionError
from skep.metadata.zookeeper.zookeeper_address import ZooKeeperAddress


@pytest.mark.parametrize(
    ("text", "hosts", "chroot"),
    [
        ("zk://a:2182", ("a:2182",), "/skep"),
        ("zk://a,b:2182,c/", ("a:2181", "b:2182", "c:2181"), "/skep"),
        ("zk://a:1/deep/down", ("a:1",), "/deep/down"),
        ("zk://a:1/deep//down/", ("a:1",), "/deep/down"),
        ("zk://[::1]:2182,[::2]/x", ("[::1]:2182", "[::2]:2181"), "/x"),
    ],
)
def test_an_address_names_the_servers_and_the_node(text, hosts, chroot):
    assert ZooKeeperAddress.parse(text) == (hosts, chroot)


@pytest.mark.parametrize(
    "text",
    ["", "a:2181", "zk://", "zk:///skep", "zk://a:", "zk://a:b", "zk://a:0", "zk://a:65536", "zk://a,,b", "zk://a/.."],
)
def test_what_is_no_address_is_refused_with_an_example(text):
    with pytest.raises(OptionError, match="expected for example zk://host1:2181"):
        ZooKeeperAddress.parse(text)
