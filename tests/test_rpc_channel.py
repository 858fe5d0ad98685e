"""gRPC ignores options it does not know, so each must be one that the library has."""

import importlib
from pathlib import Path

from pageloom import rpc_channel


def test_every_option_exists():
    library = Path(str(importlib.import_module("grpc._cython.cygrpc").__file__)).read_bytes()
    options = {*rpc_channel._CLIENT_OPTIONS, *rpc_channel._SERVER_OPTIONS}
    assert [name for name, _value in options if name.encode() + b"\x00" not in library] == []


def test_a_server_allows_the_pings_of_its_clients():
    client, server = dict(rpc_channel._CLIENT_OPTIONS), dict(rpc_channel._SERVER_OPTIONS)
    assert server["grpc.http2.min_ping_interval_without_data_ms"] < client["grpc.keepalive_time_ms"]
