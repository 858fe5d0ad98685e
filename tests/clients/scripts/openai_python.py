"""The official Python client, 1.x to 3.x: chat, helpers that parse, tools, completions, responses, errors."""

import asyncio
import json
import time

import openai
from checks import MODEL, URL, run
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, Field

client = OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = {"model": MODEL, "temperature": 0, "max_tokens": 40}


class City(BaseModel):
    name: str = Field(max_length=20)
    is_large: bool


class Weather(BaseModel, extra="forbid"):
    """The weather in a city."""

    city: str = Field(max_length=20)
    days: int


TOOL = openai.pydantic_function_tool(Weather)


def check_models():
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).object == "model"


def check_chat_with_every_common_parameter():
    raw = client.chat.completions.with_raw_response.create(
        messages=[{"role": "developer", "content": "Be brief."}, *QUESTION],
        model=MODEL, n=2, seed=3, temperature=0.7, top_p=0.9, max_completion_tokens=12, stop=["\n\n"],
        presence_penalty=0.1, frequency_penalty=0.1, logit_bias={"11": -100}, logprobs=True, top_logprobs=3,
        user="somebody", store=False, metadata={"a": "b"}, extra_body={"top_k": 40, "min_p": 0.01},
    )  # fmt: skip
    assert raw.headers["x-request-id"]
    answer = raw.parse()
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert choice.message.role == "assistant"
        tokens = choice.logprobs.content
        assert all(len(token.top_logprobs) == 3 for token in tokens)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def check_streamed_chat_is_the_same_text():
    whole = client.chat.completions.create(messages=QUESTION, **GREEDY)
    assert "Paris" in whole.choices[0].message.content
    usage_asked = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(client.chat.completions.create(messages=QUESTION, **GREEDY, **usage_asked))
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    deltas = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(delta.delta.content or "" for delta in deltas) == whole.choices[0].message.content
    assert [delta.delta.role for delta in deltas if delta.delta.role] == ["assistant"]
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == ["stop"]
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].choices == []


def check_stream_helper():
    with client.chat.completions.stream(messages=QUESTION, **GREEDY) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "content.delta" in kinds
    assert kinds[-1] in ("chunk", "content.done")
    assert "Paris" in final.choices[0].message.content


def check_parse():
    answer = client.chat.completions.parse(
        messages=[{"role": "user", "content": "Describe Oslo."}], response_format=City, **GREEDY | {"max_tokens": 80}
    )
    assert isinstance(answer.choices[0].message.parsed, City)
    try:
        client.chat.completions.parse(model=MODEL, messages=QUESTION, response_format=City, max_tokens=2)
    except openai.LengthFinishReasonError:
        pass
    else:
        raise AssertionError("an answer that was cut off was parsed")


def check_json_object():
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "A short JSON object, please."}],
        response_format={"type": "json_object"}, max_tokens=200, temperature=0,
    ).choices[0]  # fmt: skip
    assert answer.finish_reason == "length" or isinstance(json.loads(answer.message.content), dict)


def check_required_tool_and_its_result():
    messages = [{"role": "user", "content": "How is the weather in Oslo?"}]
    asked = {"model": MODEL, "messages": messages, "tools": [TOOL], "tool_choice": "required", "max_tokens": 80}
    asked |= {"temperature": 0, "parallel_tool_calls": False}
    choice = client.chat.completions.parse(**asked).choices[0]
    (call,) = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls"
    assert call.function.name == "Weather"
    assert isinstance(call.function.parsed_arguments, Weather)
    with client.chat.completions.stream(**asked) as stream:
        streamed = stream.get_final_completion().choices[0].message.tool_calls[0]
    assert streamed.function.arguments == call.function.arguments
    messages.append(choice.message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "Rain."})
    after = client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL], max_tokens=8)
    assert after.usage.prompt_tokens > 0


def check_streamed_tool_call_deltas():
    named = {"type": "function", "function": {"name": "Weather"}}
    chunks = client.chat.completions.create(
        messages=QUESTION, tools=[TOOL], tool_choice=named, stream=True, **GREEDY | {"max_tokens": 80}
    )
    calls = [call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or ()]
    assert {call.index for call in calls} == {0}
    assert [bool(call.id and call.function.name) for call in calls] == [True] + [False] * (len(calls) - 1)
    Weather.model_validate_json("".join(call.function.arguments for call in calls))


def check_completions():
    answer = client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=8, n=2, logprobs=2, seed=1)
    for choice in answer.choices:
        assert "".join(choice.logprobs.tokens) == choice.text
    pair = client.completions.create(model=MODEL, prompt=["One", "Two"], max_tokens=1, echo=True)
    assert [choice.text[:3] for choice in pair.choices] == ["One", "Two"]
    scored = client.completions.create(model=MODEL, prompt=[[28, 29, 30]], max_tokens=0, echo=True, logprobs=1)
    logprobs = scored.choices[0].logprobs.token_logprobs
    assert len(logprobs) == 3
    assert logprobs[0] is None
    assert max(logprobs[1:]) <= 0
    pieces = client.completions.create(prompt="The sky is", stream=True, **GREEDY)
    whole = client.completions.create(prompt="The sky is", **GREEDY)
    assert "".join(piece.choices[0].text for piece in pieces) == whole.choices[0].text


def check_unicode_survives_a_stream():
    said = "👩‍👩‍👧‍👦🇳🇴 日本語 é नमस्ते"
    sampling = {"model": MODEL, "max_tokens": 120, "temperature": 0}
    exact = {"structured_outputs": {"choice": [said]}}
    chunks = client.chat.completions.create(messages=QUESTION, stream=True, extra_body=exact, **sampling)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == said


def check_responses():
    asked = {"model": MODEL, "max_output_tokens": 80, "temperature": 0}
    kept = client.responses.create(instructions="Be brief.", input="Name a colour.", **asked)
    assert kept.output_text
    more = client.responses.create(input="Another.", previous_response_id=kept.id, **asked)
    assert more.previous_response_id == kept.id
    assert client.responses.retrieve(more.id).output_text == more.output_text
    assert client.responses.input_items.list(kept.id).data[0].content[0].text == "Name a colour."
    client.responses.delete(kept.id)
    try:
        client.responses.retrieve(kept.id)
    except openai.NotFoundError:
        pass
    else:
        raise AssertionError("a deleted response is still there")
    with client.responses.stream(input=QUESTION, **asked) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert events[0].type == "response.created"
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == final.output_text
    assert [event.sequence_number for event in events if hasattr(event, "sequence_number")][:3] == [0, 1, 2]
    assert "Paris" in final.output_text
    parsed = client.responses.parse(input="Describe Oslo.", text_format=City, **asked)
    assert isinstance(parsed.output_parsed, City)


def check_responses_tool():
    tool = {"type": "function", "name": "weather", "parameters": Weather.model_json_schema(), "strict": True}
    asked = {"model": MODEL, "tools": [tool], "max_output_tokens": 80, "temperature": 0}
    answer = client.responses.create(
        input="The weather in Oslo?", tool_choice="required", parallel_tool_calls=False, **asked
    )
    (call,) = [item for item in answer.output if item.type == "function_call"]
    Weather.model_validate_json(call.arguments)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain."}
    after = client.responses.create(input=[result], previous_response_id=answer.id, **asked)
    assert after.status in ("completed", "incomplete")


def check_embeddings():
    texts = ["Oslo is the capital of Norway.", "Norway's capital is Oslo.", "def f(x): return x + 1"]
    answer = client.embeddings.create(model=MODEL, input=texts)  # asks for base64
    floats = client.embeddings.create(model=MODEL, input=texts, encoding_format="float")
    assert [entry.index for entry in answer.data] == [0, 1, 2]
    for one, other in zip(answer.data, floats.data, strict=True):
        assert max(abs(a - b) for a, b in zip(one.embedding, other.embedding, strict=True)) < 1e-5
    assert answer.usage.total_tokens == answer.usage.prompt_tokens > 0


def check_batch_of_a_file():
    body = {"model": MODEL, "messages": QUESTION, "max_tokens": 8, "temperature": 0}
    requests = [
        {"custom_id": str(index), "method": "POST", "url": "/v1/chat/completions", "body": body} for index in range(3)
    ]
    lines = "\n".join(json.dumps(request) for request in requests)
    file = client.files.create(file=("requests.jsonl", lines.encode()), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"a": "b"}
    )
    deadline = time.monotonic() + 60
    while batch.status not in ("completed", "failed", "expired", "cancelled"):
        assert time.monotonic() < deadline, batch
        time.sleep(0.2)
        batch = client.batches.retrieve(batch.id)
    assert batch.status == "completed", batch
    assert batch.request_counts.completed == 3
    answers = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    assert {answer["custom_id"] for answer in answers} == {"0", "1", "2"}
    assert all(answer["response"]["status_code"] == 200 for answer in answers)
    assert batch.id in [known.id for known in client.batches.list()]
    assert client.files.delete(file.id).deleted


def check_errors():
    def raised(**fields):
        try:
            client.chat.completions.create(**({"model": MODEL, "messages": QUESTION} | fields))
        except openai.APIStatusError as error:
            return error
        raise AssertionError(f"{fields} were accepted")

    unknown = raised(model="no-such-model")
    assert isinstance(unknown, openai.NotFoundError)
    assert unknown.code == "model_not_found"
    cold = raised(temperature=-1)
    assert isinstance(cold, openai.BadRequestError)
    assert cold.param == "temperature"
    long = raised(messages=[{"role": "user", "content": "word " * 20_000}])
    assert isinstance(long, openai.BadRequestError)
    assert long.code == "context_length_exceeded"
    assert "maximum context length is" in long.message


async def check_many_at_once_and_leaving_early():
    async with AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0) as connected:

        async def ask(index: int) -> str:
            prompt = f"Count from {index}:"
            answer = await connected.completions.create(model=MODEL, prompt=prompt, max_tokens=8, temperature=0)
            return answer.choices[0].text

        texts = await asyncio.gather(*(ask(index % 4) for index in range(12)))
        assert texts[:4] == texts[4:8] == texts[8:]
        endless = await connected.completions.create(
            model=MODEL, prompt="On and on", max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
        )
        async for _ in endless:
            break
        await endless.close()


run(globals())
