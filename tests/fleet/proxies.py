"""What stands in front of two replicas: a command line, and its configuration.

Each asks `/health` every second and takes a replica out at its first other answer.
"""

from __future__ import annotations

import pathlib
import socket
from collections.abc import Callable

from client import Failed


def smg(protocol: str) -> Callable[[pathlib.Path, int, list[dict]], list[str]]:
    """SGLang's gateway, over gRPC or HTTP."""

    def command(_: pathlib.Path, port: int, replicas: list[dict]) -> list[str]:
        place = {"grpc": "grpc://127.0.0.1:{sglang}", "http": "http://127.0.0.1:{port}"}[protocol]
        workers = [place.format(**replica) for replica in replicas]
        return [
            *[
                "smg",
                "launch",
                "--host",
                "127.0.0.1",
                "--port",
                str(port),
                "--prometheus-port",
                str(port + 1),
            ],
            *["--worker-urls", *workers, "--policy", "round_robin"],
            *[
                "--health-check-interval-secs",
                "1",
                "--health-failure-threshold",
                "1",
                "--health-success-threshold",
                "1",
            ],
        ]

    return command


def haproxy(folder: pathlib.Path, port: int, replicas: list[dict]) -> list[str]:
    servers = "\n".join(
        f"  server replica{n} 127.0.0.1:{replica['port']} check inter 1s fall 1 rise 1"
        for n, replica in enumerate(replicas)
    )
    # What a replica refuses while it drains is asked again, but of the same replica until
    # a check has found it: so it is taken out before it is told to stop.
    (folder / "haproxy.cfg").write_text(f"""global
  stats socket {folder}/haproxy.sock mode 600 level admin
defaults
  mode http
  timeout connect 5s
  timeout client 10m
  timeout server 10m
  option httpchk GET /health
  http-check expect status 200
  timeout check 25s
  option redispatch 1
  retries 3
  retry-on conn-failure empty-response 503
frontend public
  bind 127.0.0.1:{port}
  default_backend replicas
backend replicas
  balance roundrobin
{servers}
""")
    return ["haproxy", "-db", "-f", str(folder / "haproxy.cfg")]


def haproxy_state(folder: pathlib.Path, number: int, serves: bool) -> None:
    """Has HAProxy send a replica no more requests, or again."""
    state = "ready" if serves else "drain"
    with socket.socket(socket.AF_UNIX) as control:
        control.connect(str(folder / "haproxy.sock"))
        control.sendall(f"set server replicas/replica{number} state {state}\n".encode())
        answer = control.makefile().read().strip()
    if answer:
        raise Failed(f"haproxy: {answer}")


def nginx(folder: pathlib.Path, port: int, replicas: list[dict]) -> list[str]:
    servers = "\n".join(
        f"    server 127.0.0.1:{r['port']} max_fails=1 fail_timeout=1s;" for r in replicas
    )
    # nginx asks no /health; it learns from answers, and asks again elsewhere.
    (folder / "nginx.conf").write_text(f"""daemon off;
pid {folder}/nginx.pid;
error_log {folder}/nginx-errors;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  client_body_temp_path {folder}/nginx-body;
  proxy_temp_path {folder}/nginx-proxy;
  fastcgi_temp_path {folder}/nginx-fastcgi;
  uwsgi_temp_path {folder}/nginx-uwsgi;
  scgi_temp_path {folder}/nginx-scgi;
  upstream replicas {{
{servers}
    keepalive 64;
  }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://replicas;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 10m;
      proxy_next_upstream error timeout http_503 non_idempotent;
    }}
  }}
}}
""")
    return ["nginx", "-c", str(folder / "nginx.conf"), "-p", str(folder)]


PROXIES = {
    "smg over gRPC": smg("grpc"),
    "smg over HTTP": smg("http"),
    "haproxy": haproxy,
    "nginx": nginx,
}
# What has to be told before a replica stops, and when it serves again.
TOLD = {"haproxy": haproxy_state}
