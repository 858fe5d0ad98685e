"""Batches before the real scheduler: a client's request does not wait for the lines that came before it."""

from __future__ import annotations

import asyncio
import json

import httpx

from pageloom.config import GatewayConfig, SchedulerConfig, WorkerConfig
from pageloom.local_stack import LocalStack
from pageloom.stack_config import StackConfig
from pageloom.status import GatewayReady
from tests.support.gateway_server import until_ready

BODY = {"model": "m", "prompt": "Hi", "max_tokens": 20, "ignore_eos": True}
NUM_LINES = 40


async def test_a_client_overtakes_the_lines_that_wait():
    # Two sequences at a time, of 20 steps each: the 32 lines that are sent at once take 16 times as long as one.
    config = StackConfig(
        scheduler=SchedulerConfig(log_level="error", max_num_seqs=2),
        worker=WorkerConfig(
            model="", simulate="fixed:10ms", num_blocks=64, max_model_len=256, max_num_seqs=2, log_level="error"
        ),
        gateway=GatewayConfig(model="", served_model_names=("m",), port=0, log_level="error"),
    )
    async with LocalStack(config, lambda _: None) as stack:
        stack.drain = False
        await stack.wait_until_ready()
        async with httpx.AsyncClient(base_url=stack.ready(GatewayReady).url, timeout=30) as http:
            await until_ready(http)
            lines = [
                json.dumps({"custom_id": str(index), "method": "POST", "url": "/v1/completions", "body": BODY})
                for index in range(NUM_LINES)
            ]
            files = {"file": ("in.jsonl", "\n".join(lines).encode())}
            file = (await http.post("/v1/files", files=files, data={"purpose": "batch"})).json()
            body = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "1h"}
            batch = (await http.post("/v1/batches", json=body)).json()
            done = 0
            while done == 0:
                done = (await http.get(f"/v1/batches/{batch['id']}")).json()["request_counts"]["completed"]
                await asyncio.sleep(0.01)
            answer = await http.post("/v1/completions", json=BODY)
            assert answer.status_code == 200, answer.text
            counts = (await http.get(f"/v1/batches/{batch['id']}")).json()["request_counts"]
            # What ran when the client came, and what ran beside it.
            assert counts["completed"] - done <= 6, counts
            assert counts["failed"] == 0
