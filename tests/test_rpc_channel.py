"""gRPC ignores options it does not know, so each must be one that the library has."""

import importlib
import os
from pathlib import Path

import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from pageloom import rpc_channel


def test_every_option_exists():
    library = Path(str(importlib.import_module("grpc._cython.cygrpc").__file__)).read_bytes()
    options = {*rpc_channel._CLIENT_OPTIONS, *rpc_channel._SERVER_OPTIONS}
    assert [name for name, _value in options if name.encode() + b"\x00" not in library] == []


def test_a_server_allows_the_pings_of_its_clients():
    client, server = dict(rpc_channel._CLIENT_OPTIONS), dict(rpc_channel._SERVER_OPTIONS)
    assert server["grpc.http2.min_ping_interval_without_data_ms"] < client["grpc.keepalive_time_ms"]


@pytest.mark.parametrize("kind", ["port", "unix socket"])
async def test_a_server_answers_at_a_port_and_a_unix_socket(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # A proxy that is not there: neither kind of address may go by it.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    server = rpc_channel.create_server()
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    unix_address = f"unix:{tmp_path}/scheduler.sock"
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.add_insecure_port(unix_address)
    await server.start()
    try:
        async with rpc_channel.open_channel(address if kind == "port" else unix_address) as channel:
            check = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
            assert (await check).status == health_pb2.HealthCheckResponse.SERVING
    finally:
        await server.stop(None)
    assert not os.listdir(tmp_path)
