"""The client factory against a real Valkey: bounded, encrypted, and a command is sent once."""

from __future__ import annotations

import datetime
import ipaddress
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.waiting import eventually
from worker.local.valkey import EmbeddedStore, free_port
from worker.settings import BadStart, Settings
from worker.store import StoreUnavailable, connect, connect_blocking, share, unavailable

ROOT = Path(__file__).parents[2]


@pytest.fixture(name="embedded")
def _embedded(tmp_path: Path) -> Iterator[EmbeddedStore]:
    with EmbeddedStore(tmp_path) as store:
        yield store


def settings_for(url: str, **environ: str) -> Settings:
    return Settings.load({"REDIS_URL": url, **environ})


def connected(admin: redis.Redis, name: str) -> int:
    return sum(client["name"] == name for client in admin.client_list())


def test_bytes_in_bytes_out_under_a_name(embedded: EmbeddedStore) -> None:
    """A client stores bytes as they are, and the store's operator sees whose it is."""
    store = connect(settings_for(embedded.url), role="web")
    store.set("k", b"\xff\x00")
    assert store.get("k") == b"\xff\x00"
    assert store.client_getname() in {"worker-web", b"worker-web"}


def test_nothing_is_opened_before_the_first_command() -> None:
    """Making a client for a store that is down costs nothing and fails nowhere."""
    assert connect(settings_for(f"redis://127.0.0.1:{free_port()}"), role="cli")


def test_without_an_address_there_is_no_store() -> None:
    """A process without REDIS_URL is told so by name."""
    with pytest.raises(BadStart) as caught:
        connect(Settings.load({}), role="cli")
    assert caught.value.problems[0].name == "REDIS_URL"


def test_database_and_password_come_from_the_address(embedded: EmbeddedStore) -> None:
    """Number and percent-encoded password are understood, and a wrong password is refused at once."""
    connect(settings_for(embedded.url), role="cli").config_set("requirepass", "p@ss/w:rd")
    url = f"redis://:p%40ss%2Fw%3Ard@127.0.0.1:{embedded.url.rpartition(':')[2].partition('/')[0]}"
    third = connect(settings_for(url + "/3"), role="cli")
    third.set("only", "here")
    assert connect(settings_for(url + "?db=3"), role="cli").get("only") == b"here"
    assert connect(settings_for(url), role="cli").get("only") is None
    began = time.monotonic()
    with pytest.raises(redis.AuthenticationError) as caught:
        connect(settings_for(url.replace("p%40ss", "wrong")), role="cli").ping()
    assert time.monotonic() - began < 1
    assert isinstance(unavailable(caught.value), StoreUnavailable)


def test_a_unix_socket_works_too(embedded: EmbeddedStore, tmp_path: Path) -> None:
    """The store may be behind a socket file."""
    path = tmp_path / "s"
    port = int(embedded.url.rpartition(":")[2].partition("/")[0])
    with Forwarder(socket.AF_UNIX, str(path), port):
        password = embedded.url.partition("://:")[2].partition("@")[0]
        store = connect(settings_for(f"unix://:{password}@{path}?db=2"), role="cli")
        assert store.set("a", 1) and store.get("a") == b"1"


def test_the_pool_is_bounded_and_waits(embedded: EmbeddedStore) -> None:
    """Thirty threads on a pool of three all get their answers, over at most three connections."""
    settings = settings_for(embedded.url, STORE_CONNECTIONS="3")
    store, admin = connect(settings, role="web"), connect(settings, role="cli")
    most, failures = [0], []

    def work() -> None:
        try:
            for _ in range(20):
                store.incr("n")
        except redis.RedisError as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(30)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        most[0] = max(most[0], connected(admin, "worker-web"))
    assert not failures and store.get("n") == b"600"
    assert 1 <= most[0] <= 3


def test_the_pool_serves_greenlets(embedded: EmbeddedStore) -> None:
    """Under gevent a hundred greenlets share four connections, and a waiting one blocks nobody."""
    code = """
from gevent import monkey; monkey.patch_all()
import gevent, os
from worker.settings import Settings
from worker.store import connect, connect_blocking
settings = Settings.load(os.environ)
store, waiting = connect(settings, role="web"), connect_blocking(settings, role="web", wait=5)
sleeper = gevent.spawn(waiting.blpop, ["never"], 3)
jobs = [gevent.spawn(store.incr, "n") for _ in range(100)]
gevent.joinall(jobs, timeout=2.5, raise_error=True)
names = [c["name"] for c in store.client_list()]
print(store.get("n").decode(), names.count("worker-web") <= 5, sleeper.ready())
os._exit(0)
"""
    environ = {**os.environ, "REDIS_URL": embedded.url, "STORE_CONNECTIONS": "4"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=30
    )
    assert done.stdout.split() == ["100", "True", "False"], done.stderr


def test_a_blocking_command_may_wait(embedded: EmbeddedStore) -> None:
    """A command that waits at the store for long is not cut off by the read time-out."""
    settings = settings_for(embedded.url)
    waiting = connect_blocking(settings, role="express", wait=6)
    assert waiting.connection_pool.connection_kwargs["socket_timeout"] > 6
    threading.Timer(0.2, lambda: connect(settings, role="cli").rpush("lane", "id")).start()
    assert waiting.blpop(["lane"], timeout=6) == (b"lane", b"id")


def test_each_role_fits_a_small_plan() -> None:
    """With default settings all processes together fit twenty connections."""
    settings = Settings.load({})
    assert share(settings, "web").total == 11
    assert sum(share(settings, role).total for role in ("web", "express", "queue", "cli")) <= 20


def test_rq_works_with_these_clients(embedded: EmbeddedStore) -> None:
    """RQ enqueues and runs a job over our client within its share of connections."""
    from rq import Queue, SimpleWorker

    settings = settings_for(embedded.url)
    queue = Queue("q", connection=connect(settings, role="queue"), serializer="json")
    job = queue.enqueue("time.time")
    waiting = connect_blocking(settings, role="queue", wait=400)
    worker = SimpleWorker(
        [Queue("q", connection=waiting, serializer="json")], connection=waiting, serializer="json"
    )
    worker.work(burst=True, logging_level="WARNING")
    assert job.get_status(refresh=True) == "finished"
    assert len(waiting.connection_pool._connections) <= share(settings, "queue").waiting


def test_a_restarted_store_is_found_again(embedded: EmbeddedStore) -> None:
    """Connections that died while they lay in the pool are replaced without an error."""
    store = connect(settings_for(embedded.url), role="web")
    assert store.set("a", 1)
    first = embedded.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    eventually(lambda: embedded.pid not in {None, first})
    assert store.get("a") == b"1"


def test_a_subscription_comes_back(embedded: EmbeddedStore) -> None:
    """After a restart the listener sees an error once, goes on, and hears what is said then."""
    settings = settings_for(embedded.url)
    listener = connect_blocking(settings, role="web", wait=1).pubsub(ignore_subscribe_messages=True)
    listener.subscribe("wake")
    speaker = connect(settings, role="cli")
    heard: list[bytes] = []

    def hears(word: str) -> bool:
        try:
            speaker.publish("wake", word)
            message = listener.get_message(timeout=0.1)
        except redis.ConnectionError:
            return False
        heard.extend([message["data"]] if message else [])
        return word.encode() in heard

    eventually(lambda: hears("before"))
    first = embedded.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    eventually(lambda: hears("after"))


def test_a_store_that_is_down_says_so_quickly() -> None:
    """A refused connection is tried a few times and reported within a second, as a 503 to a caller."""
    store = connect(settings_for(f"redis://127.0.0.1:{free_port()}"), role="web")
    began = time.monotonic()
    with pytest.raises(redis.ConnectionError) as caught:
        store.ping()
    assert time.monotonic() - began < 2
    answer = unavailable(caught.value)
    assert answer is not None
    assert (answer.status, answer.code, answer.charged) == (503, "STORE_UNAVAILABLE", False)
    assert answer.retry_after and str(caught.value) not in answer.message


class Forwarder:
    """Accepts connections on an address and carries bytes to a loopback port; can count, drop and encrypt."""

    def __init__(
        self,
        family: int,
        address: str | tuple[str, int],
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        drop: Callable[[bytes], bool] = lambda _: False,
        drop_answers: Callable[[], bool] = lambda: False,
    ) -> None:
        self._port, self._tls, self._drop, self._drop_answers = port, tls, drop, drop_answers
        self._listener = socket.socket(family)
        self._listener.bind(address)
        self._listener.listen()
        self.port = self._listener.getsockname()[1] if family == socket.AF_INET else 0
        self.accepted = 0

    def __enter__(self) -> Forwarder:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        try:
            if self._tls is not None:
                client = self._tls.wrap_socket(client, server_side=True)
            server = socket.create_connection(("127.0.0.1", self._port))
        except OSError:
            client.close()
            return
        threading.Thread(target=self._answers, args=(server, client), daemon=True).start()
        try:
            while data := client.recv(65536):
                if self._drop(data):
                    break
                server.sendall(data)
        except OSError:
            pass
        finally:
            for each in (client, server):
                each.close()

    def _answers(self, server: socket.socket, client: socket.socket) -> None:
        try:
            while data := server.recv(65536):
                if self._drop_answers():
                    client.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(data)
        except OSError:
            pass


def port_of(embedded: EmbeddedStore) -> int:
    return int(embedded.url.rpartition(":")[2].partition("/")[0])


def test_a_command_whose_answer_is_lost_is_not_sent_again(embedded: EmbeddedStore) -> None:
    """The script ran, its answer did not arrive: the caller hears of it, and it ran once."""
    lost: list[bool] = []
    with Forwarder(
        socket.AF_INET, ("127.0.0.1", 0), port_of(embedded), drop_answers=lambda: bool(lost) and lost.pop()
    ) as way:
        url = embedded.url.replace(f":{port_of(embedded)}/", f":{way.port}/")
        store = connect(settings_for(url), role="web")
        add = store.register_script("return redis.call('INCR', KEYS[1])")
        assert add(keys=["n"]) == 1
        lost.append(True)
        with pytest.raises(redis.ConnectionError):
            add(keys=["n"])
        assert not lost
        assert connect(settings_for(embedded.url), role="cli").get("n") == b"2"
        assert add(keys=["m"]) == 1, "afterwards the same client works again"


def test_a_slow_answer_is_not_asked_for_twice(embedded: EmbeddedStore) -> None:
    """A time-out while reading leaves the outcome unknown, so nothing is sent again."""
    slow: list[bool] = []

    def late() -> bool:
        if slow and slow.pop():
            time.sleep(0.6)
        return False

    with Forwarder(socket.AF_INET, ("127.0.0.1", 0), port_of(embedded), drop_answers=late) as way:
        url = embedded.url.replace(f":{port_of(embedded)}/", f":{way.port}/")
        store = connect(settings_for(url), role="web")
        store.connection_pool.connection_kwargs["socket_timeout"] = 0.3
        assert store.ping()
        slow.append(True)
        with pytest.raises(redis.TimeoutError) as caught:
            store.incr("n")
        assert isinstance(unavailable(caught.value), StoreUnavailable)
        assert store.get("n") == b"1"


def test_a_connection_that_died_unseen_is_replaced_before_use(embedded: EmbeddedStore) -> None:
    """An idle connection is pinged first; when the ping fails the command goes over a new one, once."""
    silent = threading.Event()
    with Forwarder(
        socket.AF_INET,
        ("127.0.0.1", 0),
        port_of(embedded),
        drop=lambda data: silent.is_set() and b"PING" in data,
    ) as way:
        store = connect(
            settings_for(embedded.url.replace(f":{port_of(embedded)}/", f":{way.port}/")), role="web"
        )
        assert store.incr("n") == 1
        (held,) = store.connection_pool._connections
        held.next_health_check = 0.0
        silent.set()
        before = way.accepted
        assert store.incr("n") == 2
        assert way.accepted == before + 1


def test_a_store_that_hangs_up_on_everybody_does_not_trap_us() -> None:
    """A server that accepts and closes is reported after a few tries."""
    with Forwarder(socket.AF_INET, ("127.0.0.1", 0), free_port(), drop=lambda _: True) as way:
        with pytest.raises(redis.ConnectionError):
            connect(settings_for(f"redis://127.0.0.1:{way.port}"), role="web").ping()
        assert way.accepted <= 10


def test_a_full_store_is_unavailable_and_other_errors_are_bugs(embedded: EmbeddedStore) -> None:
    """Out of memory and read-only mean 503, in scripts too; a mistake of ours stays an error."""
    store = connect(settings_for(embedded.url), role="cli")
    script = "return redis.call('SET', KEYS[1], ARGV[1])"

    def refusal() -> redis.RedisError:
        with pytest.raises(redis.RedisError) as caught:
            store.eval(script, 1, "k", "v")
        return caught.value

    store.config_set("maxmemory", 1)
    assert isinstance(unavailable(refusal()), StoreUnavailable)
    store.config_set("maxmemory", 0)
    store.replicaof("127.0.0.1", free_port())
    assert isinstance(unavailable(refusal()), StoreUnavailable)
    store.replicaof("NO", "ONE")
    store.rpush("k", 1)
    with pytest.raises(redis.ResponseError) as caught:
        store.eval("return redis.call('GET', KEYS[1])", 1, "k")
    assert unavailable(caught.value) is None and unavailable(ValueError("x")) is None


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (redis.exceptions.BusyLoadingError("loading"), True),
        (redis.exceptions.ConnectionError("No connection available."), True),
        (
            redis.exceptions.ResponseError(
                "Error running script (call to f_1): @user_script: 1: -OOM command not allowed"
            ),
            True,
        ),
        (redis.exceptions.ResponseError("MISCONF Errors writing to the AOF file"), True),
        (redis.exceptions.ResponseError("WRONGTYPE Operation against a key"), False),
        (redis.exceptions.NoScriptError("NOSCRIPT"), False),
        (redis.exceptions.DataError("x"), False),
    ],
)
def test_states_of_the_store_and_mistakes(error: Exception, expected: bool) -> None:
    """Only what passes by itself is answered with 503."""
    assert (unavailable(error) is not None) is expected


def certificate(
    name: str,
    *,
    host: str | None = None,
    signer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None = None,
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """A certificate for `host`, signed by `signer` or by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    issuer, signing = (signer[0].subject, signer[1]) if signer else (subject, key)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=host is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False
        )
    )
    if host is not None:
        address = x509.IPAddress(ipaddress.ip_address(host)) if host[0].isdigit() else x509.DNSName(host)
        builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    else:
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        builder = builder.add_extension(usage, critical=True)
    return builder.sign(signing, hashes.SHA256()), key


def pem(cert: x509.Certificate) -> str:
    return cert.public_bytes(serialization.Encoding.PEM).decode()


def server_side(folder: Path, cert: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> ssl.SSLContext:
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "server.pem").write_text(private.decode() + pem(cert))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    return context


class Encrypted:
    """Three certificates: an authority's, the store's signed by it, and one that signs itself."""

    def __init__(self, folder: Path, embedded: EmbeddedStore, host: str) -> None:
        self.authority = certificate("authority")
        self.stranger = certificate("stranger")
        self.signed = certificate("store", host=host, signer=self.authority)
        self.alone = certificate("store", host=host)
        self._folder, self._embedded = folder, embedded

    def ping(self, served: tuple[x509.Certificate, ec.EllipticCurvePrivateKey], **environ: str) -> bool:
        context = server_side(self._folder, *served)
        with Forwarder(socket.AF_INET, ("127.0.0.1", 0), port_of(self._embedded), tls=context) as way:
            password = self._embedded.url.partition("://:")[2].partition("@")[0]
            url = f"rediss://:{password}@127.0.0.1:{way.port}/0"
            try:
                return bool(connect(settings_for(url, **environ), role="cli").ping())
            except redis.ConnectionError:
                return False


def test_tls_with_an_authority_of_ones_own(embedded: EmbeddedStore, tmp_path: Path) -> None:
    """A certificate passes when REDIS_TLS_CA signed it for this host, as a file or as text."""
    world = Encrypted(tmp_path, embedded, "127.0.0.1")
    path = tmp_path / "ca.pem"
    path.write_text(pem(world.authority[0]))
    assert world.ping(world.signed, REDIS_TLS_CA=str(path))
    assert world.ping(world.signed, REDIS_TLS_CA=pem(world.authority[0]))


def test_tls_refuses_what_it_cannot_check(embedded: EmbeddedStore, tmp_path: Path) -> None:
    """Without the authority, or with a stranger's, or with nobody's, there is no connection."""
    world = Encrypted(tmp_path, embedded, "127.0.0.1")
    assert not world.ping(world.signed)
    assert not world.ping(world.signed, REDIS_TLS_CA=pem(world.stranger[0]))
    assert not world.ping(world.alone, REDIS_TLS_CA=pem(world.authority[0]))


def test_tls_checks_the_host_unless_told_otherwise(embedded: EmbeddedStore, tmp_path: Path) -> None:
    """A certificate for another host is refused with `on` and passes with `ca`."""
    world = Encrypted(tmp_path, embedded, "store.example")
    authority = pem(world.authority[0])
    assert not world.ping(world.signed, REDIS_TLS_CA=authority)
    assert world.ping(world.signed, REDIS_TLS_CA=authority, REDIS_TLS_VERIFY="ca")


def test_tls_with_a_self_signed_store(embedded: EmbeddedStore, tmp_path: Path) -> None:
    """With `ca` a self-signed store is known by its own certificate, and no other passes for it."""
    world = Encrypted(tmp_path, embedded, "store.example")
    own = pem(world.alone[0])
    assert world.ping(world.alone, REDIS_TLS_CA=own, REDIS_TLS_VERIFY="ca")
    assert not world.ping(world.stranger, REDIS_TLS_CA=own, REDIS_TLS_VERIFY="ca")
    assert not world.ping(world.signed, REDIS_TLS_CA=own, REDIS_TLS_VERIFY="ca")


def test_tls_only_own_authority_counts(embedded: EmbeddedStore, tmp_path: Path) -> None:
    """With REDIS_TLS_CA the system's authorities no longer vouch for the store."""
    world = Encrypted(tmp_path, embedded, "127.0.0.1")
    settings = settings_for("rediss://127.0.0.1", REDIS_TLS_CA=pem(world.authority[0]))
    context = connect(settings, role="cli").connection_pool.connection_kwargs["tls"]
    assert [each["serialNumber"] for each in context.get_ca_certs()] == [
        format(world.authority[0].serial_number, "X").zfill(
            2 * ((world.authority[0].serial_number.bit_length() + 7) // 8)
        )
    ]


def test_tls_can_be_left_unchecked(embedded: EmbeddedStore, tmp_path: Path) -> None:
    """`off` encrypts without knowing to whom; production refuses it elsewhere."""
    world = Encrypted(tmp_path, embedded, "store.example")
    assert world.ping(world.alone, REDIS_TLS_VERIFY="off")
