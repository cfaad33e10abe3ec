"""Principals out of the names in certificates: rules of the operator, and names as RFC 2253 has them."""

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from skep.base.errors import OptionError
from skep.security.tls.distinguished_name import subject_of
from skep.security.tls.mapping_rules import MAX_NAME_LENGTH, MappingRules

NAME = "CN=Duke,OU=ServiceUsers,O=Org,C=US"


@pytest.mark.parametrize(
    ("rules", "name", "principal"),
    [
        ("DEFAULT", NAME, NAME),
        (r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", NAME, "Duke"),
        (r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L", NAME, "duke"),
        (r"RULE:^CN=(.*?),.*$/$1@x/U, DEFAULT", NAME, "DUKE@X"),
        (r"RULE:^CN=(.*?),OU=(.*?),O=(.*?),.*$/$1.$2.$3/,DEFAULT", NAME, "Duke.ServiceUsers.Org"),
        (r"RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,DEFAULT", "O=x,CN=Ann.B", "ann.b"),
        (r"RULE:^CN=other$/a/,RULE:^CN=(.*?),.*$/b/,DEFAULT", NAME, "b"),
        (r"RULE:^CN=(a\/b)$/$1\/\$1/", "CN=a/b", "a/b/$1"),
    ],
)
def test_the_first_rule_that_applies_makes_the_principal(rules, name, principal):
    assert MappingRules(rules).principal(name).name == principal


def test_a_rule_must_match_the_whole_name():
    rules = MappingRules("RULE:CN=admin/admin/")
    with pytest.raises(OptionError, match="no rule of"):
        rules.principal("CN=admin,O=Evil")


def test_a_very_long_name_is_not_matched_at_all():
    with pytest.raises(OptionError, match="4096 are allowed"):
        MappingRules("RULE:(a*)*b/$1/").principal("a" * (MAX_NAME_LENGTH + 1))


@pytest.mark.parametrize("rules", ["", "RULE", "RULE:a/b", "RULE:(/x/", "RULE:a/$1/", "default", "a,DEFAULT"])
def test_what_is_no_rule_is_refused(rules):
    with pytest.raises(OptionError, match=r"ssl\.principal\.mapping\.rules"):
        MappingRules(rules)


def certificate(*parts: tuple[x509.ObjectIdentifier, str]) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(oid, text) for oid, text in parts])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.DER)


def test_a_name_is_written_as_java_writes_it():
    der = certificate(
        (NameOID.COUNTRY_NAME, "DE"),
        (NameOID.ORGANIZATION_NAME, 'Eggs, "Ham" + Co=#1'),
        (NameOID.ORGANIZATIONAL_UNIT_NAME, " a "),
        (NameOID.COMMON_NAME, "Zoë"),
    )
    assert subject_of(der) == 'CN=Zoë,OU=\\ a\\ ,O=Eggs\\, \\"Ham\\" \\+ Co\\=\\#1,C=DE'


def test_a_part_without_a_short_name_is_written_in_hex():
    der = certificate((NameOID.COMMON_NAME, "a"), (NameOID.EMAIL_ADDRESS, "a@b"))
    assert subject_of(der) == "1.2.840.113549.1.9.1=#1603614062,CN=a"
