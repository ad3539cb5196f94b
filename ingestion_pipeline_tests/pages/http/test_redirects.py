"""Every hop of a fetch is guarded: redirects, names, addresses and certificates."""

import shutil
import ssl
from pathlib import Path

import pytest

from ingestion_pipeline.pages import Answer, Endpoint, Fetched, Guard, Request
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline_tests.fakes import FakeResolver, FakeWeb, Reply, WebAnswer, a_certificate, redirect
from ingestion_pipeline_tests.pages.page_fetches import NOW, fetch, fetch_page, run_with_fetcher


def test_redirects_are_followed_and_the_final_url_is_returned() -> None:
    routes = {"/a": redirect("b", 301), "/b": redirect("/c?x=1", 308), "/c?x=1": b"here"}
    with FakeWeb(routes) as web:
        answer = fetch_page(web, "/a")

        assert (answer.body, answer.url) == (b"here", web.url("/a"))
        assert answer.final_url == web.url("/c?x=1")


@pytest.mark.parametrize(("hops", "is_followed"), [(5, True), (6, False)])
def test_five_redirects_are_followed_and_no_more(hops: int, is_followed: bool) -> None:
    routes: dict[str, WebAnswer] = {f"/{n}": redirect(f"/{n + 1}") for n in range(hops)}
    with FakeWeb({**routes, f"/{hops}": b"end"}) as web:
        if is_followed:
            assert fetch_page(web, "/0").body == b"end"
        else:
            with pytest.raises(Permanent) as caught:
                fetch(web, "/0")
            assert caught.value.code == "redirects"


def test_a_redirect_loop_is_detected_at_once() -> None:
    with FakeWeb({"/a": redirect("/b"), "/b": redirect("/a#again")}) as web:
        with pytest.raises(Permanent, match="loop") as caught:
            fetch(web, "/a")

        assert caught.value.code == "redirects"
        assert web.paths == ["/a", "/b"]


fullwidth, circled = "\uff11\uff12\uff17.0.0.1", "\u2460\u2461\u2466.\u24ea.\u24ea.\u2460"
FORMS = f"""
127.0.0.1 127.1 127.0.1 2130706433 0x7f000001 0x7f.1 0177.0.0.1 017700000001 0x7f.0.0.0x1 0 0.0.0.0
localhost 127.0.0.2 127.255.255.254 [::1] [::] [0:0:0:0:0:0:0:1] [::ffff:127.0.0.1] [::127.0.0.1]
[::ffff:7f00:1] [64:ff9b::7f00:1] [2002:7f00:1::] [fe80::1] [fc00::1] [fec0::1] [ff02::1]
{circled} {fullwidth} 127。0。0。1 127%2e0.0.1 10.0.0.1 172.16.0.1 192.168.1.1 169.254.169.254
100.64.0.1 192.0.0.192 198.18.0.1 224.0.0.1 240.0.0.1 255.255.255.255 0x7F000001 LOCALHOST
[2001:0:7f00:1::] [64:ff9b::a9fe:a9fe] [::ffff:a9fe:a9fe] [64:ff9b:1::7f00:1] [fd00:ec2::254] 0x0
127.0.0.1. metadata.google.internal METADATA.goog. instance-data 100.100.100.200 168.63.129.16
"""


@pytest.mark.parametrize("form", FORMS.split())
def test_no_form_of_a_private_address_is_reached_directly_or_by_redirect(form: str) -> None:
    with FakeWeb({"/": b"secret"}) as private, FakeWeb() as front:
        url = f"http://{form}:{private.port}/"
        front.routes["/"] = Reply(b"", 302, {"Location": url.encode().decode("latin-1")})
        for request in (Request(url=url), Request(url=front.url())):
            with pytest.raises(Permanent) as caught:
                fetch(front, request)
            assert caught.value.code == "blocked_address"

        assert len(front.requests) == 1
        assert private.connections == 0


@pytest.mark.parametrize(
    "location", ["file:///etc/passwd", "gopher://a.test/", "javascript:0", "http://[", "http://u:hunter2@a.test/"]
)
def test_a_redirect_to_another_scheme_is_refused(location: str) -> None:
    with FakeWeb({"/": redirect(location)}) as web, pytest.raises(Permanent) as caught:
        fetch(web)

    assert caught.value.code == "bad_url"
    assert "hunter2" not in str(caught.value)


def test_a_url_with_a_password_is_not_fetched() -> None:
    with FakeWeb({"/": b""}) as web:
        with pytest.raises(Permanent) as caught:
            fetch(web, Request(url=f"http://u:hunter2@{web.host_port}/"))

        assert caught.value.code == "bad_url"
        assert "hunter2" not in str(caught.value)
        assert web.connections == 0


def test_each_hop_is_resolved_once_and_connects_to_the_checked_address() -> None:
    with FakeWeb({"/": redirect("http://b.test/")}) as first, FakeWeb({"/": b"b"}) as second:
        elsewhere = [Endpoint("10.0.0.1", 1)]
        resolver = FakeResolver({"a.test": [[first.endpoint], elsewhere], "b.test": [[second.endpoint], elsewhere]})

        answer = run_with_fetcher(lambda f: f.fetch(Request(url="http://a.test/"), now=NOW), Guard(resolve=resolver))

        assert isinstance(answer, Fetched)
        assert resolver.lookups == ["a.test", "b.test"]
        assert [request.host for request in first.requests + second.requests] == ["a.test", "b.test"]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to make a certificate")
    return a_certificate(tmp_path_factory.mktemp("tls"), "a.test")


def fetch_https(web: FakeWeb, url: str, ca_file: Path | None) -> Answer:
    guard = Guard(resolve=FakeResolver({"a.test": [[web.endpoint]], "b.test": [[web.endpoint]]}))
    return run_with_fetcher(lambda f: f.fetch(Request(url=url), now=NOW), guard, ca_file=ca_file)


def test_host_header_and_tls_server_name_are_the_hostname(certificate: tuple[Path, ssl.SSLContext]) -> None:
    cert, context = certificate
    names: list[str | None] = []
    context.sni_callback = lambda _socket, name, _context: names.append(name)
    with FakeWeb({"/": b"safe"}, tls=context) as web:
        answer = fetch_https(web, "https://a.test/", cert)

        assert isinstance(answer, Fetched)
        assert answer.body == b"safe"
        assert names == ["a.test"]
        assert web.requests[0].host == "a.test"


@pytest.mark.parametrize(("host", "is_trusted"), [("a.test", False), ("b.test", True)])
def test_an_invalid_certificate_is_a_permanent_failure(
    certificate: tuple[Path, ssl.SSLContext], host: str, is_trusted: bool
) -> None:
    cert, context = certificate
    with FakeWeb({"/": b"unsafe"}, tls=context) as web:
        with pytest.raises(Permanent) as caught:
            fetch_https(web, f"https://{host}/", cert if is_trusted else None)

        assert caught.value.code == "tls"
        assert web.requests == []


def test_a_redirect_from_https_to_http_is_refused(certificate: tuple[Path, ssl.SSLContext]) -> None:
    cert, context = certificate
    with FakeWeb({"/": redirect("http://b.test/")}, tls=context) as web:
        with pytest.raises(Permanent) as caught:
            fetch_https(web, "https://a.test/", cert)

        assert caught.value.code == "redirects"
        assert web.connections == 1
