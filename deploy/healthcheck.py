#!/usr/bin/env python3
"""Does the service in this container answer? Exit code 0 if so.

`healthcheck http://HOST:PORT/PATH` wants status 200, `healthcheck grpc://HOST:PORT` wants SERVING
from grpc.health.v1.
"""

import http.client
import sys
from urllib.parse import urlsplit

TIMEOUT_S = 4.0


def main(url: str) -> str | None:
    """What is wrong, or None."""
    parts = urlsplit(url)
    address = f"{parts.hostname}:{parts.port}"
    try:
        if parts.scheme == "grpc":
            return _grpc_problem(address)
        return _http_problem(address, parts.path)
    except OSError as error:
        return f"{url}: {error}"


def _http_problem(address: str, path: str) -> str | None:
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
    connection.request("GET", path)
    status = connection.getresponse().status
    return None if status == 200 else f"{path} answered {status}"


def _grpc_problem(address: str) -> str | None:
    # Only the scheduler is asked this way; the other two need not load grpc for it.
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with grpc.insecure_channel(address) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            return f"{address}: {error}"
    serving = answer.status == health_pb2.HealthCheckResponse.SERVING
    return None if serving else health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
