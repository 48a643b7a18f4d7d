"""How gunicorn serves the web process: the worker's own settings, then yours below, which win."""

from worker.web import *  # noqa: F403
