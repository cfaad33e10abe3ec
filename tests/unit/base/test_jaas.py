"""``sasl.jaas.config``, and secrets that hide themselves."""

import pickle

import pytest

from skep.base.errors import OptionError
from skep.base.jaas import OAUTHBEARER, PLAIN, SCRAM, parse_jaas
from skep.base.secret import Secret

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


def test_a_login_is_read():
    jaas = parse_jaas(f'{PLAIN_MODULE} required username="alice" password="s3;c=\\"r et\\\\";')
    assert (jaas.login, jaas.username) == (PLAIN, "alice")
    assert jaas.password == Secret('s3;c="r et\\')
    assert jaas.users == {}


def test_users_of_a_broker_are_read():
    jaas = parse_jaas(
        f"""{PLAIN_MODULE} REQUIRED // the broker itself
            username=admin password='it''s' /* several
            lines */ user_admin=a/b user_al-ice="b"
        ;""".replace("''", "\\'")
    )
    assert jaas.password == Secret("it's")
    assert jaas.users == {"admin": Secret("a/b"), "al-ice": Secret("b")}


@pytest.mark.parametrize(
    ("module", "login"),
    [
        ("org.apache.kafka.common.security.scram.ScramLoginModule", SCRAM),
        ("kafkashaded.org.apache.kafka.common.security.scram.ScramLoginModule", SCRAM),
        ("org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule", OAUTHBEARER),
    ],
)
def test_the_module_says_the_mechanism(module, login):
    jaas = parse_jaas(f"{module} required;")
    assert (jaas.login, jaas.username, jaas.password) == (login, None, None)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "expected the name of a login module"),
        (";", "expected the name of a login module"),
        (PLAIN_MODULE, "followed by one of"),
        (f"{PLAIN_MODULE} username=a;", "followed by one of"),
        ("com.sun.security.auth.module.JndiLoginModule required;", "unknown login module"),
        (f"{PLAIN_MODULE} required password=hunter2", "semicolon at the end"),
        (f"{PLAIN_MODULE} required password=hunter2; x", "text after the semicolon"),
        (f'{PLAIN_MODULE} required password="hunter2;', "quote missing"),
        (f'{PLAIN_MODULE} required password="hun"hunter2;', "after 'password'"),
        (f"{PLAIN_MODULE} required password==hunter2;", "after the control flag"),
        (f"{PLAIN_MODULE} required password=x password=hunter2;", "'password' is given twice"),
    ],
)
def test_an_error_says_what_is_wrong_and_no_value(text, what):
    with pytest.raises(OptionError, match="my.option: .*" + what) as caught:
        parse_jaas(text, "my.option")
    assert "hunter2" not in str(caught.value)


def test_a_secret_is_not_shown_by_accident():
    secret = Secret("hunter2")
    shown = f"{secret} {secret!r} {secret:>10} {[secret]} {{'a': {secret}}} %s" % secret
    assert "hunter2" not in shown
    assert secret.reveal() == "hunter2"
    assert secret == Secret("hunter2")
    assert secret != Secret("hunter3")
    assert secret != "hunter2"
    assert hash(secret) == hash(Secret("hunter2"))
    assert not Secret("")
    assert pickle.loads(pickle.dumps(secret)) == secret
    assert "hunter2" not in repr(parse_jaas(f"{PLAIN_MODULE} required username=u password=hunter2;"))
