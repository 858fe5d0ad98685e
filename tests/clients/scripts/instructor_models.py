"""instructor: pydantic models out of the model, by forced tools and by schemas, whole and in part."""

import instructor
from checks import MODEL, URL, run
from openai import OpenAI
from pydantic import BaseModel, Field

client = OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
ASKED = {"model": MODEL, "messages": [{"role": "user", "content": "Describe Oslo."}], "temperature": 0}
# A second try would hide an answer that does not fit.
ASKED |= {"max_tokens": 200, "max_retries": 0}


class City(BaseModel, extra="forbid"):
    name: str = Field(max_length=20)
    rank: int = Field(ge=1, le=99)
    is_large: bool


def answers_in(mode: instructor.Mode) -> City:
    return instructor.from_openai(client, mode=mode).chat.completions.create(response_model=City, **ASKED)


def check_tools():
    assert isinstance(answers_in(instructor.Mode.TOOLS), City)


def check_strict_tools():
    assert isinstance(answers_in(instructor.Mode.TOOLS_STRICT), City)


def check_json_schema():
    assert isinstance(answers_in(instructor.Mode.JSON_SCHEMA), City)


def check_parts_while_they_come():
    patched = instructor.from_openai(client, mode=instructor.Mode.TOOLS)
    parts = list(patched.chat.completions.create_partial(response_model=City, **ASKED))
    assert len(parts) > 1
    assert parts[-1].name


run(globals())
