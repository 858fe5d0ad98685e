"""langchain-openai: invoke, stream, batch, bound tools and structured output."""

from checks import MODEL, URL, run
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

SERVER = {"base_url": f"{URL}/v1", "api_key": "none", "model": MODEL, "temperature": 0, "max_retries": 0}
chat = ChatOpenAI(**SERVER, max_completion_tokens=60, stream_usage=True, use_responses_api=False)
MESSAGES = [SystemMessage("Be brief."), HumanMessage("What is the capital of France?")]


class City(BaseModel, extra="forbid"):
    """A city."""

    name: str = Field(max_length=20)
    is_large: bool


@tool
def multiply(left: int, right: int) -> int:
    """The product of two numbers."""
    return left * right


def check_invoke():
    answer = chat.invoke(MESSAGES)
    assert "Paris" in answer.content
    assert answer.usage_metadata["output_tokens"] > 0
    assert answer.response_metadata["finish_reason"] == "stop"


def check_stream_is_the_same_text():
    chunks = list(chat.stream(MESSAGES))
    assert "".join(chunk.content for chunk in chunks) == chat.invoke(MESSAGES).content
    counted = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    assert sum(usage["output_tokens"] for usage in counted) > 0


def check_batch():
    answers = chat.batch([MESSAGES] * 4)
    assert len({answer.content for answer in answers}) == 1


async def check_asynchronous_stream():
    assert "Paris" in "".join([chunk.content async for chunk in chat.astream(MESSAGES)])


def check_logprobs():
    answer = chat.bind(logprobs=True, top_logprobs=2).invoke(MESSAGES)
    tokens = answer.response_metadata["logprobs"]["content"]
    assert "".join(token["token"] for token in tokens).removesuffix("<|im_end|>") == answer.content


def check_forced_tool_and_its_result():
    forced = chat.bind_tools([multiply], tool_choice="multiply")
    question = HumanMessage("What is 6 times 7?")
    answer = forced.invoke([question])
    (call,) = answer.tool_calls
    assert call["name"] == "multiply"
    assert set(call["args"]) == {"left", "right"}
    merged = None
    for chunk in forced.stream([question]):
        merged = chunk if merged is None else merged + chunk
    assert merged.tool_calls[0]["args"] == call["args"]
    result = ToolMessage(str(multiply.invoke(call["args"])), tool_call_id=call["id"])
    after = chat.bind_tools([multiply]).invoke([question, answer, result])
    assert isinstance(after, AIMessage)


def check_structured_output():
    for method in ("json_schema", "function_calling"):
        answer = chat.with_structured_output(City, method=method).invoke("Describe Oslo.")
        assert isinstance(answer, City), method


def check_responses_api():
    over_responses = ChatOpenAI(**SERVER, max_completion_tokens=60, use_responses_api=True)
    assert "Paris" in over_responses.invoke(MESSAGES).text
    assert "Paris" in "".join(chunk.text for chunk in over_responses.stream(MESSAGES))


def check_completions():
    assert OpenAI(**SERVER, max_tokens=8).invoke("The capital of France is")


def check_embeddings():
    connection = {name: SERVER[name] for name in ("base_url", "api_key", "model")}
    embeddings = OpenAIEmbeddings(**connection, check_embedding_ctx_length=False)
    one, other = embeddings.embed_documents(["Oslo", "Paris"])
    assert len(one) == len(other) > 100
    assert one != other


run(globals())
