"""gRPC settings that both ends of every connection must agree on."""

from __future__ import annotations

import grpc

# A request carries one prompt and the core bounds the tokens that a plan admits: both stay far below
# this, so a larger message is a mistake or an attack.
MAX_MESSAGE_BYTES = 16 * 1024 * 1024

_KEEPALIVE_TIME_MS = 20_000
_KEEPALIVE_TIMEOUT_MS = 10_000
# A server tears down connections that ping more often than this; it must stay below the client's interval.
_MIN_PING_INTERVAL_MS = 10_000

_COMMON_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_permit_without_calls", 1),
)
_CLIENT_OPTIONS: tuple[tuple[str, int], ...] = (
    *_COMMON_OPTIONS,
    ("grpc.keepalive_time_ms", _KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    # The probe widens a stream's window up to megabytes, which a reader that has stopped then has
    # to hold; without it the sender feels a slow reader after 64 KiB.
    ("grpc.http2.bdp_probe", 0),
    # Streams recover by their own protocol; a transparent retry would only hide the loss.
    ("grpc.enable_retries", 0),
    # Reconnect soon after a peer restarts.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Proxies from the environment must never see traffic between the services.
    ("grpc.enable_http_proxy", 0),
)
_SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    *_COMMON_OPTIONS,
    # Beyond 1,000 calls that come at once gRPC cancels some at random and without a word, a worker's or a gateway's
    # as well; the scheduler itself says which are too many, and why.
    ("grpc.server.max_pending_requests", 1 << 16),
    ("grpc.server.max_pending_requests_hard_limit", 1 << 16),
    ("grpc.http2.min_ping_interval_without_data_ms", _MIN_PING_INTERVAL_MS),
    # Without this, two servers could share a port in silence.
    ("grpc.so_reuseport", 0),
)


def open_channel(address: str) -> grpc.aio.Channel:
    """A channel to "host:port" or "unix:/path"; it connects when it is first used."""
    return grpc.aio.insecure_channel(address, options=_CLIENT_OPTIONS)


def create_server() -> grpc.aio.Server:
    """A server without services or ports."""
    return grpc.aio.server(options=_SERVER_OPTIONS)
