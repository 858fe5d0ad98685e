"""pydantic-ai: agents with text, structured and streamed output, and a tool; it validates every answer anew."""

from checks import MODEL, URL, run
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url=f"{URL}/v1", api_key="none")
model = OpenAIChatModel(MODEL, provider=provider)
SETTINGS = {"temperature": 0, "max_tokens": 100}
QUESTION = "What is the capital of France?"


class City(BaseModel):
    name: str = Field(max_length=20)
    is_large: bool


def check_run():
    agent = Agent(model, instructions="Be brief.", system_prompt=("Be kind.", "Be right."), model_settings=SETTINGS)
    answer = agent.run_sync(QUESTION)
    assert answer.output
    assert answer.usage.output_tokens > 0
    again = agent.run_sync("And of Norway?", message_history=answer.all_messages())
    assert again.usage.input_tokens > answer.usage.input_tokens


async def check_stream_is_the_same_text():
    agent = Agent(model, model_settings=SETTINGS)
    async with agent.run_stream(QUESTION) as streamed:
        text = "".join([piece async for piece in streamed.stream_text(delta=True)])
    assert "Paris" in text
    assert text == (await agent.run(QUESTION)).output


def check_output_by_a_forced_tool():
    agent = Agent(model, output_type=ToolOutput(City), model_settings=SETTINGS, retries=0)
    assert isinstance(agent.run_sync("Describe Oslo.").output, City)


def check_output_by_a_schema():
    agent = Agent(model, output_type=NativeOutput(City), model_settings=SETTINGS, retries=0)
    assert isinstance(agent.run_sync("Describe Oslo.").output, City)


async def check_streamed_output():
    agent = Agent(model, output_type=NativeOutput(City), model_settings=SETTINGS, retries=0)
    async with agent.run_stream("Describe Oslo.") as streamed:
        assert isinstance(await streamed.get_output(), City)


def check_tool_is_offered():
    agent = Agent(model, model_settings=SETTINGS)
    called = []

    @agent.tool_plain
    def temperature(city: str) -> int:
        """The temperature in a city."""
        called.append(city)
        return 12

    assert agent.run_sync("How warm is it in Oslo?").usage.requests == len(called) + 1


def check_responses():
    agent = Agent(OpenAIResponsesModel(MODEL, provider=provider), model_settings=SETTINGS)
    assert "Paris" in agent.run_sync(QUESTION).output


run(globals())
