"""Anthropic's Python client: messages, streams, tools, token counts, errors."""

import anthropic
from anthropic import Anthropic
from checks import MODEL, URL, run

client = Anthropic(base_url=URL, api_key="none", max_retries=0)
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
# The client has no argument for the temperature any more; the API has one.
GREEDY = {"model": MODEL, "max_tokens": 60, "extra_body": {"temperature": 0}}
TOOL = {
    "name": "weather",
    "description": "The weather in a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
    },
}


def prompt_len(answer):
    """In tokens; what was found in the cache is counted apart."""
    return answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)


def check_message():
    answer = client.messages.create(messages=QUESTION, system="Be brief.", **GREEDY)
    assert answer.type == "message"
    assert answer.role == "assistant"
    assert answer.content[0].type == "text"
    assert "Paris" in answer.content[0].text
    assert answer.stop_reason == "end_turn"
    assert answer.usage.input_tokens > 0
    assert answer.usage.output_tokens > 0


def check_stream_is_the_same_message():
    whole = client.messages.create(messages=QUESTION, **GREEDY)
    with client.messages.stream(messages=QUESTION, **GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == whole.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def check_events_in_order():
    events = list(client.messages.create(messages=QUESTION, stream=True, **GREEDY))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) <= {"content_block_delta", "ping"}


def check_stop_sequence_and_length():
    stopped = client.messages.create(messages=QUESTION, stop_sequences=["Paris"], **GREEDY)
    assert stopped.stop_reason == "stop_sequence"
    assert stopped.stop_sequence == "Paris"
    cut = client.messages.create(messages=QUESTION, **GREEDY | {"max_tokens": 2})
    assert cut.stop_reason == "max_tokens"


def check_content_blocks_and_sampling():
    blocks = [{"role": "user", "content": [{"type": "text", "text": "Name a "}, {"type": "text", "text": "colour."}]}]
    sampling = {"temperature": 1.0, "top_k": 40, "top_p": 0.9}
    answer = client.messages.create(
        model=MODEL, max_tokens=12, messages=blocks, metadata={"user_id": "somebody"}, extra_body=sampling
    )
    assert answer.content[0].text


def check_forced_tool_and_its_result():
    messages = [{"role": "user", "content": "How is the weather in Oslo?"}]
    asked = {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "weather"}} | GREEDY
    answer = client.messages.create(messages=messages, **asked)
    (use,) = [block for block in answer.content if block.type == "tool_use"]
    assert answer.stop_reason == "tool_use"
    assert use.name == "weather"
    assert set(use.input) >= {"city"}
    with client.messages.stream(messages=messages, **asked) as stream:
        streamed = stream.get_final_message()
    assert [block.input for block in streamed.content if block.type == "tool_use"] == [use.input]
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "Rain."}
    messages += [
        {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in answer.content]},
        {"role": "user", "content": [result]},
    ]
    after = client.messages.create(messages=messages, tools=[TOOL], **GREEDY | {"max_tokens": 8})
    assert prompt_len(after) > prompt_len(answer)


def check_count_tokens():
    counted = client.messages.count_tokens(model=MODEL, messages=QUESTION, system="Be brief.")
    answer = client.messages.create(messages=QUESTION, system="Be brief.", **GREEDY)
    assert counted.input_tokens == prompt_len(answer)


def check_errors():
    def raised(**fields):
        try:
            client.messages.create(**({"messages": QUESTION} | GREEDY | fields))
        except anthropic.APIStatusError as error:
            return error
        raise AssertionError(f"{fields} were accepted")

    unknown = raised(model="no-such-model")
    assert isinstance(unknown, anthropic.NotFoundError)
    assert unknown.body["error"]["type"] == "not_found_error"
    bad = raised(messages=[{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}])
    assert isinstance(bad, anthropic.BadRequestError)
    assert bad.body["error"]["type"] == "invalid_request_error"


run(globals())
