"""The store client factory against a real Valkey: bounded pools, TLS, and no command sent twice."""

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
from typing import Any

import pytest
import redis
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.store_crash import crash
from tests.waiting import eventually
from worker.cli.doctor_store import connections_needed
from worker.core.settings import BadStart, Settings
from worker.local.valkey import EmbeddedStore, free_port
from worker.queue.rq import QueueWorker, RunQueue
from worker.store.client import StoreUnavailable, connect, connect_apart, connect_blocking, unavailable
from worker.store.commands import ask, one_connection

ROOT = Path(__file__).parents[2]


@pytest.fixture(name="embedded")
def _embedded(tmp_path: Path) -> Iterator[EmbeddedStore]:
    with EmbeddedStore(tmp_path) as store:
        yield store


def settings_for(url: str, **environ: str) -> Settings:
    return Settings.load({"REDIS_URL": url, **environ})


def connected(admin: redis.Redis, name: str) -> int:
    return sum(client["name"] == name for client in admin.client_list())


def test_client_stores_bytes_under_its_name(embedded: EmbeddedStore) -> None:
    """A client stores bytes unchanged, and the store shows the client's name."""
    store = connect(settings_for(embedded.url), role="web")
    store.set("k", b"\xff\x00")
    assert store.get("k") == b"\xff\x00"
    assert store.client_getname() in {"worker-web", b"worker-web"}


def test_no_connection_is_opened_before_the_first_command() -> None:
    """Creating a client for an unreachable store is cheap and does not fail."""
    assert connect(settings_for(f"redis://127.0.0.1:{free_port()}"), role="cli")


def test_missing_redis_url_is_reported() -> None:
    """The error names the missing REDIS_URL."""
    with pytest.raises(BadStart) as caught:
        connect(Settings.load({}), role="cli")
    assert caught.value.problems[0].name == "REDIS_URL"


def test_url_sets_database_and_password(embedded: EmbeddedStore) -> None:
    """Database number and percent-encoded password are parsed; a wrong password is refused immediately."""
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


def test_unix_socket_is_supported(embedded: EmbeddedStore, tmp_path: Path) -> None:
    """The store may be behind a socket file."""
    path = tmp_path / "s"
    port = int(embedded.url.rpartition(":")[2].partition("/")[0])
    with Forwarder(socket.AF_UNIX, str(path), port):
        password = embedded.url.partition("://:")[2].partition("@")[0]
        store = connect(settings_for(f"unix://:{password}@{path}?db=2"), role="cli")
        assert store.set("a", 1) and store.get("a") == b"1"


def test_one_connection_serves_all_threads(embedded: EmbeddedStore) -> None:
    """Thirty threads are answered over one connection."""
    settings = settings_for(embedded.url)
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
    assert most[0] == 1


def test_one_connection_serves_all_greenlets(embedded: EmbeddedStore) -> None:
    """Under gevent a hundred greenlets share it, in turns, and one that blocks on a queue blocks no other."""
    code = """
from gevent import monkey; monkey.patch_all()
import gevent, os, redis
from worker.core.settings import Settings
from worker.store.client import connect, connect_blocking
settings = Settings.load(os.environ)
store, waiting = connect(settings, role="web"), connect_blocking(settings, role="web", wait=60)
sleeper = gevent.spawn(waiting.blpop, ["never"], 60)
counts, widest = [0] * 100, 0

def work(number):
    global widest
    for _ in range(20):
        store.incr("n")
        counts[number] += 1
        widest = max(widest, max(counts) - min(counts))

gevent.joinall([gevent.spawn(work, number) for number in range(100)], timeout=25, raise_error=True)
names = [c["name"] for c in redis.Redis.from_url(settings.redis_url).client_list()]
print(store.get("n").decode(), names.count("worker-web"), widest <= 2, sleeper.ready(), flush=True)
os._exit(0)
"""
    environ = {**os.environ, "REDIS_URL": embedded.url}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=30
    )
    assert done.stdout.split() == ["2000", "2", "True", "False"], done.stderr


def test_blocking_command_outlives_the_read_timeout(embedded: EmbeddedStore) -> None:
    """A long blocking command is not cut off by the read time-out."""
    settings = settings_for(embedded.url)
    waiting = connect_blocking(settings, role="express", wait=6)
    assert waiting.connection_pool.connection_kwargs["socket_timeout"] > 6
    threading.Timer(0.2, lambda: connect(settings, role="cli").rpush("lane", "id")).start()
    assert waiting.blpop(["lane"], timeout=6) == (b"lane", b"id")


def test_connection_counts_fit_a_small_plan() -> None:
    """With default settings all processes and a command fit fifteen; more processes fit twenty."""
    assert sum(connections_needed(Settings.load({})).values()) <= 15
    more = {"WEB_CONCURRENCY": "2", "QUEUE_PROCESSES": "3"}
    assert sum(connections_needed(Settings.load(more)).values()) <= 20


def test_rq_uses_these_clients(embedded: EmbeddedStore) -> None:
    """RQ accepts our messages, and our worker runs them over one connection that blocks."""
    settings = settings_for(embedded.url)
    client, waiting = connect(settings, role="queue"), connect_blocking(settings, role="queue", wait=400)
    RunQueue(client).push("an-id")
    ran: list[str] = []
    worker = QueueWorker(waiting, name="w1", run=ran.append, sign=lambda: None)
    worker.work(burst=True, logging_level="WARNING")
    assert ran == ["an-id"]
    pool: Any = waiting.connection_pool
    assert len(pool._connections) == 1


def test_restarted_store_is_reconnected(embedded: EmbeddedStore) -> None:
    """Connections that died in the pool are replaced without an error."""
    store = connect(settings_for(embedded.url), role="web")
    assert store.set("a", 1)
    crash(embedded)
    assert store.get("a") == b"1"


def test_subscription_resumes_after_a_restart(embedded: EmbeddedStore) -> None:
    """After a restart the listener sees one error, continues, and receives later messages."""
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


def test_unavailable_store_fails_quickly() -> None:
    """A refused connection is retried a few times and reported within a second, as a 503 to a caller."""
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
    """Forwards an address to a loopback port; can count, drop and encrypt."""

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

    def leads_to(self, port: int) -> None:
        """New connections go to this port; existing ones stay."""
        self._port = port

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


def test_command_with_a_lost_answer_is_not_resent(embedded: EmbeddedStore) -> None:
    """The script ran but its response was lost: the caller gets an error, and it ran once."""
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


def test_slow_command_is_not_resent(embedded: EmbeddedStore) -> None:
    """After a read time-out the outcome is unknown, so nothing is resent."""
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


def test_one_connection_is_not_replaced_between_its_commands(embedded: EmbeddedStore) -> None:
    """On another one, WAIT would answer for no write at all, even after a pause in which this one died."""
    client = connect_apart(settings_for(embedded.url), role="web")
    with one_connection(client) as own:
        ask(own, "SET", "a", "1")
        redis.Redis.from_url(embedded.url).client_kill_filter(_id=ask(own, "CLIENT", "ID"))
        own.connection.next_health_check = 0.0
        with pytest.raises(redis.ConnectionError):
            ask(own, "WAIT", 0, 10)
    with one_connection(client) as own:
        assert ask(own, "GET", "a") == b"1"
    client.close()


def test_stale_connection_is_replaced_before_use(embedded: EmbeddedStore) -> None:
    """An idle connection is pinged first; if the ping fails the command uses a new one, once."""
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
        link: Any = getattr(store, "link")  # noqa: B009
        link._connection.next_health_check = 0.0
        silent.set()
        before = way.accepted
        assert store.incr("n") == 2
        assert way.accepted == before + 1


def test_store_closing_every_connection_is_unavailable() -> None:
    """A server that accepts and closes is reported after a few tries."""
    with Forwarder(socket.AF_INET, ("127.0.0.1", 0), free_port(), drop=lambda _: True) as way:
        with pytest.raises(redis.ConnectionError):
            connect(settings_for(f"redis://127.0.0.1:{way.port}"), role="web").ping()
        assert way.accepted <= 10


class SwitchableStores:
    """Two stores behind one address, like a hosted store; the address can be switched to the other."""

    def __init__(self, folder: Path) -> None:
        self.stores = [EmbeddedStore(folder / name) for name in ("one", "other")]
        for store in self.stores:
            store.start()
        # a client is accepted with the password of either
        self.admins = [connect(settings_for(store.url), role="cli") for store in self.stores]
        for admin in self.admins:
            admin.config_set("requirepass", "shared")
        self.way = Forwarder(socket.AF_INET, ("127.0.0.1", 0), port_of(self.stores[0]))

    def __enter__(self) -> SwitchableStores:
        self.way.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.way.__exit__()
        for store in self.stores:
            store.stop()

    @property
    def settings(self) -> Settings:
        return settings_for(f"redis://:shared@127.0.0.1:{self.way.port}/0")

    def move(self) -> None:
        self.way.leads_to(port_of(self.stores[1]))


def use_all(store: redis.Redis) -> None:
    """Opens every connection of the pool."""
    threads = [threading.Thread(target=lambda: store.eval("return 1", 0)) for _ in range(60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("state", ["READONLY", "MASTERDOWN", "NOREPLICAS"])
def test_connections_leave_a_demoted_primary(tmp_path: Path, state: str) -> None:
    """After a failover behind one address only the first call is refused; reads and listeners move too."""
    with SwitchableStores(tmp_path) as behind:
        store = connect(behind.settings, role="web")
        listener = connect_blocking(behind.settings, role="web", wait=1).pubsub(
            ignore_subscribe_messages=True
        )
        listener.subscribe("wake")
        eventually(lambda: store.publish("wake", "x") and listener.get_message(timeout=0.1))
        use_all(store)
        old, new = behind.admins
        refuse(old, state)
        behind.move()
        with pytest.raises(redis.RedisError) as caught:
            store.get("k") if state == "MASTERDOWN" else store.set("k", "v")
        assert state in f"{type(caught.value).__name__} {caught.value}".upper().replace("ERROR", "")
        assert isinstance(unavailable(caught.value), StoreUnavailable)
        for number in range(30):
            assert store.set(f"k{number}", "v")
        assert new.dbsize() == 30

        def hears() -> bool:
            new.publish("wake", "x")
            try:
                return listener.get_message(timeout=0.1) is not None
            except redis.ConnectionError:
                return False

        eventually(hears)


def refuse(server: redis.Redis, state: str) -> None:
    """Brings a real server into a state in which it refuses every write."""
    if state == "NOREPLICAS":
        server.config_set("min-replicas-to-write", 1)
    else:
        server.config_set("replica-serve-stale-data", "no" if state == "MASTERDOWN" else "yes")
        server.replicaof("127.0.0.1", free_port())


@pytest.mark.parametrize(
    "refusal",
    [
        b"-LOADING Redis is loading the dataset in memory",
        b"-NOAUTH Authentication required.",
        b"-WRONGPASS invalid username-password pair or user is disabled.",
        b"-UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
    ],
)
def test_refused_connection_is_not_reused(refusal: bytes) -> None:
    """Loading, a revoked password, a wait cut off by a failover: each is reported to one caller."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        answers = [refusal, b"+PONG"]

        def serve() -> None:
            while answers:
                with server.accept()[0] as client:
                    while data := client.recv(4096):
                        client.sendall(b"+OK\r\n" * data.count(b"SETNAME"))
                        if b"PING" in data:
                            client.sendall(answers.pop(0) + b"\r\n")

        threading.Thread(target=serve, daemon=True).start()
        store = connect(settings_for(f"redis://127.0.0.1:{server.getsockname()[1]}"), role="cli")
        with pytest.raises(redis.RedisError) as caught:
            store.ping()
        assert unavailable(caught.value) is not None
        assert store.ping(), "the next one speaks over a new connection"
        store.close()


def test_full_store_is_unavailable(embedded: EmbeddedStore) -> None:
    """Out of memory and read-only mean 503, in scripts too; a bug of ours stays an error."""
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
def test_store_errors_are_classified(error: Exception, expected: bool) -> None:
    """Only temporary errors are answered with 503."""
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
    """Three certificates: an authority's, the store's signed by it, and a self-signed one."""

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


def test_tls_with_a_private_authority(embedded: EmbeddedStore, tmp_path: Path) -> None:
    """A certificate signed by REDIS_TLS_CA for this host is accepted, with the CA as file or text."""
    world = Encrypted(tmp_path, embedded, "127.0.0.1")
    path = tmp_path / "ca.pem"
    path.write_text(pem(world.authority[0]))
    assert world.ping(world.signed, REDIS_TLS_CA=str(path))
    assert world.ping(world.signed, REDIS_TLS_CA=pem(world.authority[0]))


def test_tls_refuses_an_untrusted_certificate(embedded: EmbeddedStore, tmp_path: Path) -> None:
    """Without the authority, with another one, or with a self-signed certificate, the connection fails."""
    world = Encrypted(tmp_path, embedded, "127.0.0.1")
    assert not world.ping(world.signed)
    assert not world.ping(world.signed, REDIS_TLS_CA=pem(world.stranger[0]))
    assert not world.ping(world.alone, REDIS_TLS_CA=pem(world.authority[0]))


def test_tls_checks_the_host_unless_told_otherwise(embedded: EmbeddedStore, tmp_path: Path) -> None:
    """A certificate for another host is refused with `on` and accepted with `ca`."""
    world = Encrypted(tmp_path, embedded, "store.example")
    authority = pem(world.authority[0])
    assert not world.ping(world.signed, REDIS_TLS_CA=authority)
    assert world.ping(world.signed, REDIS_TLS_CA=authority, REDIS_TLS_VERIFY="ca")


def test_tls_with_a_self_signed_certificate(embedded: EmbeddedStore, tmp_path: Path) -> None:
    """With `ca` a self-signed store is verified by its own certificate, and no other is accepted."""
    world = Encrypted(tmp_path, embedded, "store.example")
    own = pem(world.alone[0])
    assert world.ping(world.alone, REDIS_TLS_CA=own, REDIS_TLS_VERIFY="ca")
    assert not world.ping(world.stranger, REDIS_TLS_CA=own, REDIS_TLS_VERIFY="ca")
    assert not world.ping(world.signed, REDIS_TLS_CA=own, REDIS_TLS_VERIFY="ca")


def test_tls_only_own_authority_counts(embedded: EmbeddedStore, tmp_path: Path) -> None:
    """With REDIS_TLS_CA the system's authorities are not trusted for the store."""
    world = Encrypted(tmp_path, embedded, "127.0.0.1")
    settings = settings_for("rediss://127.0.0.1", REDIS_TLS_CA=pem(world.authority[0]))
    context = connect(settings, role="cli").connection_pool.connection_kwargs["tls"]
    assert [each["serialNumber"] for each in context.get_ca_certs()] == [
        format(world.authority[0].serial_number, "X").zfill(
            2 * ((world.authority[0].serial_number.bit_length() + 7) // 8)
        )
    ]


def test_tls_can_be_left_unchecked(embedded: EmbeddedStore, tmp_path: Path) -> None:
    """`off` encrypts without verification; production refuses it for remote stores."""
    world = Encrypted(tmp_path, embedded, "store.example")
    assert world.ping(world.alone, REDIS_TLS_VERIFY="off")
