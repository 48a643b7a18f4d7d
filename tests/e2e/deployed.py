"""A deployment as docs/deploy.md describes it: an empty environment, the page's commands, real services.

The class fills in what a person would: host name, ports, addresses of node, facilitator and bucket.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import boto3
import psutil
import urllib3
from moto.server import ThreadedMotoServer

from tests.e2e.tree import MARK, ROOT, kill_all
from tests.fakes.certificates import self_signed
from tests.system import program
from tests.waiting import eventually
from worker.core.settings import Settings
from worker.core.values import address_of
from worker.local.valkey import free_port

HOST = "worker.test"
SHIPPED = ("worker", "config", "requirements.txt", "Procfile", ".python-version", "app.json")
GAS_KEY = "0x" + "44" * 32
BLOCK = re.compile(r"^## (.+?)$|```bash\n(.*?)```", re.DOTALL | re.MULTILINE)
ROW = re.compile(r"^\| [^|]+ \| `(.+)` \|$", re.MULTILINE)
# Resolves the test's host name, as a name server would.
RESOLVER = f"""
import socket
_ask = socket.getaddrinfo
def getaddrinfo(host, *rest, **more):
    return _ask("127.0.0.1" if host == "{HOST}" else host, *rest, **more)
socket.getaddrinfo = getaddrinfo
"""
AGENTS = '''
import time
from worker import agent

@agent("count", price="0.10", time_limit=60, inline=False, attempts=3, example_input={"to": 3})
def count(job):
    """Counts slowly enough to be deployed over."""
    for number in range(job.input["to"]):
        job.progress(number / job.input["to"], str(number))
        time.sleep(0.5)
    return {"counted": job.input["to"]}
'''


def blocks(page: Path) -> dict[str, list[str]]:
    """The shell blocks of a page by heading."""
    found: dict[str, list[str]] = {}
    heading = ""
    for match in BLOCK.finditer(page.read_text()):
        heading = match[1] or heading
        if match[2]:
            found.setdefault(heading, []).append(match[2])
    return found


class Deployed:
    """The services around a deployment, and its processes."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.app = home / "app"
        self.mark = secrets.token_hex(8)
        names = ("tls", "store", "web", "web2", "rpc", "facilitator")
        self.ports = {name: free_port() for name in names}
        self.url = f"https://{HOST}:{self.ports['tls']}"
        self.page = blocks(ROOT / "docs/deploy.md")
        self.ran: set[str] = set()
        self._stack = ExitStack()
        self._bucket = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)

    # The page

    def run(self, heading: str, number: int = 0, *, seeker: bool = False) -> str:
        """Runs one block of the page unchanged in a new shell; returns its output."""
        return self.shell(self.page[heading][number], seeker=seeker)

    def shell(self, lines: str, *, seeker: bool = False) -> str:
        self.ran.add(lines)
        began = ". .venv/bin/activate\n" if (self.app / ".venv").exists() else ""
        began += "set -a; . ./.env; set +a\n" if (self.app / ".env").exists() else ""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", began + self._filled(lines)],
            cwd=self.app,
            env=self.environ(seeker=seeker),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=400,
            start_new_session=True,
        )
        assert done.returncode == 0, f"{lines}\nended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def _filled(self, lines: str) -> str:
        """Replaces the page's example values with this deployment's."""
        ports = self.ports
        places = {
            "https://worker.example": self.url,
            "https://x402.org/facilitator": f"http://127.0.0.1:{ports['facilitator']}",
            "https://sepolia.base.org": f"http://127.0.0.1:{ports['rpc']}",
            "https://s3.example": "http://{}:{}".format(*self._bucket.get_host_and_port()),
            "127.0.0.1:6379": f"127.0.0.1:{ports['store']}",
            "-p 6379": f"-p {ports['store']}",
            "redis.conf --requirepass": f"redis.conf --tls-port {ports['store']} --requirepass",
            "-p 8000": f"-p {ports['web']}",
            "-p 8001": f"-p {ports['web2']}",
        }
        for example, here in places.items():
            lines = lines.replace(example, here)
        return lines

    def environ(self, *, seeker: bool = False) -> dict[str, str]:
        """An environment without settings; a seeker's knows the host's name and certificate."""
        ours = (*Settings.names(), "PYTHONPATH", "VIRTUAL_ENV")
        kept = {name: value for name, value in os.environ.items() if name not in ours}
        kept |= {MARK: self.mark, "HOME": str(self.home), "PYTHONUNBUFFERED": "1"}
        if seeker:
            certificate = str(self.home / "tls/certificate.pem")
            kept |= {"SSL_CERT_FILE": certificate, "CURL_CA_BUNDLE": certificate}
            kept |= {"PYTHONPATH": str(self.home / "resolver")}
        return kept

    # The surrounding services

    def begin(self) -> None:
        """Installs the release's files in an empty directory, and starts a bucket."""
        self.app.mkdir(parents=True)
        for name in SHIPPED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, self.app / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, self.app / name)
        (self.app / "slow_agents.py").write_text(AGENTS)
        resolver = self.home / "resolver"
        resolver.mkdir()
        (resolver / "sitecustomize.py").write_text(RESOLVER)
        (self.home / ".curlrc").write_text(f'resolve = "{HOST}:{self.ports["tls"]}:127.0.0.1"\n')
        self._bucket.start()
        self._stack.callback(self._bucket.stop)
        client = boto3.client(
            "s3",
            endpoint_url="http://{}:{}".format(*self._bucket.get_host_and_port()),
            aws_access_key_id="x",
            aws_secret_access_key="x",
            region_name="us-east-1",
        )
        client.create_bucket(Bucket="my-bucket")
        client.close()

    def start_chain(self) -> None:
        """Starts a chain that mines by itself, with dollars for the seeker, and a facilitator on it."""
        seeker = address_of((self.app / "seeker.key").read_text().strip())
        rpc = f"http://127.0.0.1:{self.ports['rpc']}"
        chain = ["worker.local.chain", "--state", str(self.home / "chain"), "--port", str(self.ports["rpc"])]
        chain += ["--block-time", "0.5", "--ether", f"{address_of(GAS_KEY)}={10**21}"]
        self._service([*chain, "--dollars", f"{seeker}={10**9}"])
        self._service(["worker.local.facilitator", "--rpc", rpc, "--port", str(self.ports["facilitator"])])
        for name in ("rpc", "facilitator"):
            eventually(lambda at=self.ports[name]: _listens(at), 30, f"{name} listens")

    def start_nginx(self) -> None:
        """Starts nginx with the shipped site and this host's name, certificate and ports."""
        certificate = self_signed(self.home / "tls", HOST)
        site = (ROOT / "config/nginx.conf").read_text()
        places = {
            "listen 443 ssl": f"listen 127.0.0.1:{self.ports['tls']} ssl",
            "worker.example;": f"{HOST};",
            "/etc/letsencrypt/live/worker.example/fullchain.pem": str(certificate.file),
            "/etc/letsencrypt/live/worker.example/privkey.pem": str(certificate.key),
            "127.0.0.1:8000": f"127.0.0.1:{self.ports['web']}",
            "127.0.0.1:8001": f"127.0.0.1:{self.ports['web2']}",
        }
        for example, here in places.items():
            assert example in site, example
            site = site.replace(example, here)
        folder = self.home / "nginx"
        folder.mkdir()
        temporary = "".join(
            f"{kind}_temp_path {folder}/{kind};\n"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        (folder / "nginx.conf").write_text(
            f"daemon off; pid {folder}/pid; error_log {folder}/error.log;\nevents {{}}\n"
            f"http {{\naccess_log off;\n{temporary}{site}}}\n"
        )
        self._popen([program("nginx"), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")])
        eventually(lambda: _listens(self.ports["tls"]), 10, "nginx listens")

    def _service(self, words: list[str]) -> None:
        self._popen([sys.executable, "-m", *words], PYTHONPATH=str(ROOT), FACILITATOR_GAS_KEY=GAS_KEY)

    def _popen(self, command: list[str], **more: str) -> None:
        with (self.home / "services.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=self.home,
                env={**self.environ(), **more},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._stack.callback(_end, process)

    # Dynos

    def dynos(self, kind: str) -> list[psutil.Process]:
        """The honcho processes that run a line of the Procfile, oldest first."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                ours = process.environ().get(MARK) == self.mark and words[2:3] == ["start"]
                # honcho forks once for its line.
                copy = process.ppid() > 1 and psutil.Process(process.ppid()).cmdline() == words
                if ours and "honcho" in words[1] and words[-1] == kind and not copy:
                    found.append(process)
        return sorted(found, key=lambda each: each.create_time())

    def stop_dyno(self, dyno: psutil.Process) -> None:
        """SIGTERM to all processes of a dyno, as a host sends it; it must end within a host's 30 s."""
        groups = set()
        for each in dyno.children(recursive=True):
            with contextlib.suppress(ProcessLookupError):
                groups.add(os.getpgid(each.pid))
        groups -= {os.getpgid(dyno.pid)}
        assert groups, "honcho runs a line in a group of its own"
        for group in groups:
            with contextlib.suppress(ProcessLookupError):  # a run's own group ends with its parent
                os.killpg(group, signal.SIGTERM)
        dyno.wait(30)

    def ready(self) -> bool:
        """The result of `/ready` through the proxy."""
        token = re.search(r"^KERNEL_TOKEN=(.+)$", (self.app / ".env").read_text(), re.MULTILINE)
        assert token is not None
        certificate = str(self.home / "tls/certificate.pem")
        with urllib3.HTTPSConnectionPool(
            "127.0.0.1", self.ports["tls"], ca_certs=certificate, server_hostname=HOST, assert_hostname=HOST
        ) as pool:
            headers = {"Host": f"{HOST}:{self.ports['tls']}", "Authorization": f"Bearer {token[1]}"}
            try:
                return pool.request("GET", "/ready", headers=headers, retries=False, timeout=5).status == 200
            except urllib3.exceptions.HTTPError:
                return False

    def logs(self) -> str:
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-4000:]}"
            for path in [*sorted(self.app.glob("*.log")), self.home / "services.log"]
        )

    def close(self) -> None:
        kill_all(self.mark, self.home)
        self._stack.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    process.wait(10)


def _listens(port: int) -> bool:
    import socket

    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def table_commands(page: Path) -> Iterator[str]:
    """The commands in the last column of a page's tables."""
    yield from ROW.findall(page.read_text())
