"""The chat format of the demo models: ChatML without a default system message, and tools in the way of Hermes and Qwen.

Tools are told in one line each, as signatures: a model of this size reads a whole JSON schema slowly and gains nothing
from it.
"""

import json

SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]  # ids 0, 1, 2
START, END = 1, 2
TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\n' }}"
    "{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] + '\n\n' }}{% endif %}{{ 'Tools:' }}"
    "{% for tool in tools %}{% set function = tool['function'] %}"
    "{{ '\n- ' + function['name'] + '(' + ((function['parameters'] or {})['properties'] or {}) | join(', ') + ')' }}"
    "{% if function['description'] %}{{ ': ' + function['description'] }}{% endif %}"
    "{% endfor %}{{ '<|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}{% if not (tools and loop.first and message['role'] == 'system') %}"
    "{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['tool_calls'] %}"
    "{% if message['content'] %}{{ message['content'] + '\n' }}{% endif %}"
    "{% for call in message['tool_calls'] %}{% if not loop.first %}{{ '\n' }}{% endif %}"
    "{{ '<tool_call>\n{\"name\": \"' + call['function']['name'] + '\", \"arguments\": ' }}"
    "{{ call['function']['arguments'] | tojson }}{{ '}\n</tool_call>' }}"
    "{% endfor %}{% else %}{{ message['content'] }}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def signature(tool: dict) -> str:
    function = tool["function"]
    properties = (function.get("parameters") or {}).get("properties") or {}
    description = function.get("description")
    return f"{function['name']}({', '.join(properties)})" + (f": {description}" if description else "")


def call_text(call: dict) -> str:
    function = call["function"]
    written = json.dumps(function["arguments"], ensure_ascii=False)
    return f'<tool_call>\n{{"name": "{function["name"]}", "arguments": {written}}}\n</tool_call>'


def content(message: dict) -> str:
    """What stands between a message's role and its end."""
    calls = [call_text(call) for call in message.get("tool_calls") or []]
    return "\n".join([*([message["content"]] if message.get("content") else []), *calls])


def render(messages: list[dict], add_generation_prompt: bool = False, tools: list[dict] | None = None) -> str:
    """What TEMPLATE renders."""
    if tools:
        instructed = messages[0]["role"] == "system"
        listed = "Tools:" + "".join(f"\n- {signature(tool)}" for tool in tools)
        system = f"{messages[0]['content']}\n\n{listed}" if instructed else listed
        messages = [{"role": "system", "content": system}, *messages[instructed:]]
    text = "".join(f"<|im_start|>{message['role']}\n{content(message)}<|im_end|>\n" for message in messages)
    return text + ("<|im_start|>assistant\n" if add_generation_prompt else "")
