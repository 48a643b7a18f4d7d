"""Dockerfile, compose file, Procfile and docs page use the same commands, run by the deployment test."""

from __future__ import annotations

import configparser
import json
import re
from pathlib import Path
from typing import Any

import yaml

from worker.core.settings import Settings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/deploy.md").read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def procfile() -> dict[str, str]:
    lines = (ROOT / "Procfile").read_text().splitlines()
    return {name: line for name, _, line in (each.partition(": ") for each in lines)}


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    return found


def test_every_line_runs_without_the_project_installed() -> None:
    """A dyno and an image install only requirements.txt, so there is no `worker` command."""
    assert all(line.startswith("python -m worker ") for line in procfile().values())
    commands = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    rows = re.findall(r"^\| [^|]+ \| `(.+)` \|$", PAGE, re.MULTILINE)
    for line in [*"\n".join(commands).splitlines(), *rows]:
        assert not re.match(r"(worker|gunicorn) ", line), line


def test_an_authors_project_has_the_same_lines() -> None:
    """`worker init` writes the Procfile tested here."""
    project = ROOT / "worker/data/project/Procfile.txt"
    assert project.read_text() == (ROOT / "Procfile").read_text()


def test_one_python_everywhere() -> None:
    """.python-version, the image and the oldest supported version agree."""
    version = (ROOT / ".python-version").read_text().strip()
    assert f"FROM python:{version}-slim" in DOCKERFILE
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert setup["options"]["python_requires"] == f">={version}"


def test_containers_run_the_procfiles_lines() -> None:
    """web and work run the Procfile's web and worker; the image starts web by default."""
    services = compose()["services"]
    assert services["web"]["command"] == procfile()["web"]
    assert services["work"]["command"] == procfile()["worker"]
    image = re.search(r"^CMD (\[.+\])$", DOCKERFILE, re.MULTILINE)
    assert image is not None and " ".join(json.loads(image[1])) == procfile()["web"]


def test_the_image_installs_what_the_page_installs() -> None:
    """Both install the same pinned requirements, with hashes."""
    assert "--require-hashes -r requirements.txt" in DOCKERFILE
    assert "--require-hashes -r requirements.txt" in PAGE
    for line in re.findall(r"^COPY (.+)$", DOCKERFILE, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists() and f"!{source}" in (ROOT / ".dockerignore").read_text().split()


def test_the_composed_store_is_the_pages_store() -> None:
    """Certificate and configuration are those that the docs page starts a store with."""
    services = compose()["services"]
    assert services["certificate"]["command"].endswith("config/store/certificate.sh")
    assert "config/store/certificate.sh" in PAGE
    command = services["store"]["command"].split()
    assert command[0] == "redis-server" and command[2] == "--requirepass"
    assert "./config/store:/config:ro" in services["store"]["volumes"] and command[1] == "/config/redis.conf"
    assert 'redis-server ../../config/store/redis.conf --requirepass "$STORE_PASSWORD"' in PAGE
    assert services["store"]["working_dir"] == services["certificate"]["working_dir"] == "/data"


def test_containers_are_given_real_settings() -> None:
    """The variables in compose file, image and the page's .env are all settings."""
    environment = compose()["services"]["web"]["environment"]
    image = re.findall(r"([A-Z_]+)=\S", next(line for line in DOCKERFILE.splitlines() if line[:4] == "ENV "))
    known = {*Settings.names(), "PYTHONUNBUFFERED"}
    assert {*environment, *image} <= known
    written = re.findall(r"^([A-Z0-9_]+)=\S", PAGE, re.MULTILINE)
    others = {"AWS_ENDPOINT_URL_S3", "AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    assert len(written) > 10 and set(written) - {*Settings.names(), "REDIS"} == others


def test_the_hosts_description_forms_the_procfiles_processes() -> None:
    """app.json starts the processes of the Procfile."""
    assert set(json.loads((ROOT / "app.json").read_text())["formation"]) == set(procfile()) - {"release"}
