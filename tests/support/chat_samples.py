"""The chat templates of real model families, and conversations to render with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

TEMPLATES = Path(__file__).parent / "templates"
TEMPLATE_NAMES = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": 'Tells the "weather" <b>& more</b> é.',
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Where; ü"},
                    "days": {"type": "integer"},
                    "units": {"type": "string", "enum": ["C", "F"]},
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "now", "description": "Tells the time.", "parameters": {"type": "object"}},
    },
]
DOCUMENTS = [{"title": "Guide", "text": "Paris is a city. 🗼"}, {"title": "Nächstes", "text": "Zwei."}]
SYSTEM = {"role": "system", "content": "Be brief. "}
QUESTION = {"role": "user", "content": " What is the weather in Zürich? 天気 👩‍👩‍👧 é\n"}
ANSWER = {"role": "assistant", "content": "Sunny, I think."}
THOUGHT = {"role": "assistant", "content": "Sunny.", "reasoning_content": "Alps, so sun."}
AGAIN = {"role": "user", "content": "And <b>tomorrow</b> & 'later'?"}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "abc123XYZ",
            "type": "function",
            "function": {"name": "weather", "arguments": {"city": "Zürich 🗼", "days": 2}},
        }
    ],
}
SECOND_CALL = {**CALL["tool_calls"][0], "id": "def456XYZ", "function": {"name": "now", "arguments": {}}}  # type: ignore
CALLS = {**CALL, "tool_calls": [CALL["tool_calls"][0], SECOND_CALL]}
RESULT = {"role": "tool", "tool_call_id": "abc123XYZ", "name": "weather", "content": '{"sky": "blau ☀"}'}
SECOND_RESULT = {"role": "tool", "tool_call_id": "def456XYZ", "name": "now", "content": "12:00"}
PARTS = {"role": "user", "content": [{"type": "text", "text": "One "}, {"type": "text", "text": "two ü"}]}

CHATS: dict[str, list[dict[str, Any]]] = {
    "question": [QUESTION],
    "system": [SYSTEM, QUESTION],
    "turns": [SYSTEM, QUESTION, ANSWER, AGAIN],
    "thought": [QUESTION, THOUGHT, AGAIN],
    "call": [QUESTION, CALL, RESULT],
    "calls": [SYSTEM, QUESTION, CALLS, RESULT, SECOND_RESULT, ANSWER, AGAIN],
    "parts": [PARTS],
    "two-systems": [SYSTEM, {"role": "system", "content": "Be kind."}, QUESTION],
}


def template_source(name: str) -> str:
    return (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
