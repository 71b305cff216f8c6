"""Whom clients believe: the machine's authorities over TLS, and nobody where nothing was to be encrypted."""

import ssl

import pytest

from etude.serving.trust import trust


@pytest.mark.parametrize("by_environment", [False, True])
def test_who_asks_over_tls_checks_with_the_authorities_of_the_machine(by_environment):
    found = trust("https://models.example.com/v1", by_environment=by_environment)
    assert (found.verify_mode, found.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert found.cert_store_stats()["x509_ca"] > 50
    assert found is trust("HTTPS://other.example.com", by_environment=by_environment), "they are read once"


def test_a_plain_address_reads_none_and_would_refuse_every_certificate():
    found = trust("http://127.0.0.1:8000/v1")
    assert (found.verify_mode, found.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert found.cert_store_stats()["x509_ca"] == 0
