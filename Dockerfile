FROM python:3.11-slim
WORKDIR /app
RUN useradd --create-home worker && mkdir -p /state && chown worker /state
COPY requirements.txt .
RUN python -m pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements.txt
COPY worker worker
COPY config config
USER worker
ENV WORKER_STATE_DIR=/state FILES_URL=/state/files PYTHONUNBUFFERED=1
CMD ["python", "-m", "worker", "web"]
