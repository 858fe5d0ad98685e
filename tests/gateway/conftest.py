from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from gateway.served_model import ServedModel, load_served_model
from tests.support.gateway_server import GatewayServer, gateway_config, gateway_server


@pytest.fixture(scope="session")
def served_model() -> ServedModel:
    return load_served_model(gateway_config(scheduler_address="unused:1"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_gateway(served_model: ServedModel) -> AsyncGenerator[GatewayServer]:
    """For tests that leave the server as they found it; their module runs in one event loop."""
    async with gateway_server(served_model) as running:
        yield running


@pytest.fixture
def gateway(shared_gateway: GatewayServer) -> GatewayServer:
    engine = shared_gateway.engine
    engine.requests.clear()
    engine.cancelled.clear()
    engine.closed.clear()
    return shared_gateway
