"""Chat templates: the same text as transformers, every failure a ParameterError, no way to take the server down."""

import json
from typing import Any

import pytest

from octavo.chat_template import ChatTemplate
from octavo.config import ConfigError
from octavo.sampling_params import ParameterError

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
CHAT = [
    {"role": "system", "content": "Be  brief.\n"},
    {"role": "user", "content": 'Hi <b>&"é" 🙂'},
    {"role": "assistant", "content": " Hello! "},
    {"role": "user", "content": "Bye"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d<é>", "parameters": {"type": "object"}}}]

CHATML = """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' + message['content'] | trim + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""
TOOL_CALLS = """
{{- bos_token }}
{%- if tools %}
    {%- for tool in tools %}{{ tool | tojson }} {{ tool | tojson(indent=4) }}{% endfor %}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' and message.tool_calls %}
        {%- for call in message.tool_calls %}{{ call.function.name }}({{ call.function.arguments | tojson }}){% endfor %}
    {%- else %}
        {%- generation %}[{{ message.role | upper }}]{{ message.content }}{% endgeneration %}
    {%- endif %}
    {%- if loop.index > 50 %}{% break %}{% endif %}
{%- endfor %}
"""
LINES = """{% for message in messages %}
    {% if loop.first %}
first {{ loop.length }}
    {% endif %}
{% set ns = namespace(x=0) %}
    {% for c in message['content'].split() %}{% set ns.x = ns.x + 1 %}{{ c ~ '/' ~ ns.x ~ ' ' }}{% endfor %}
{{ '%s-%05d' | format(message.role, loop.index0) }}{{ message.content | replace('e', 'EE') | indent(2, true) }}
{{ [1, 2, 3] | join(', ') }}{{ ', '.join(['a', 'b']) }}{{ 'x'.center(5) }}{{ 'ab' * 3 }}{{ 2 ** 3 }}{{ 7 % 4 }}{{ '%d' % 5 }}
{{ message.content[1:-1] }}{{ "{:>4}".format('z') }}{{ messages[:-1] | length }}{{ 3.14159 | round(2) }}{{ ['b', 'a'] + ['c'] }}
{% endfor %}
"""
MACRO = """
{%- macro show(m, depth=0) %}{{ '>' * depth }}{{ m.content }}{% if depth < 2 %}{{ show(m, depth + 1) }}{% endif %}{% endmacro %}
{%- for m in messages if m.role != 'system' %}{{ show(m) }}{% else %}none{% endfor %}
{%- for a in [[1, [2]], [3]] recursive %}{% if a is iterable %}({{ loop(a) }}){% else %}{{ a }}{% endif %}{% endfor %}
{%- filter upper %}{% block b %}shout{% endblock %}{% endfilter %}
{%- set captured %}{{ messages | map(attribute='role') | unique | list | tojson }}{% endset %}{{ captured }}
{%- if messages[0].missing is defined %}x{% endif %}{{ messages | selectattr('role', 'equalto', 'user') | list | length }}
"""
USES = """{{ [1, [2.5, none, 'a']] }}{{ {'a' ~ 1: (1, 2)} }}{{ [1, 2][1:] == [2] }}{{ 'a' in {'a': 1} and 3 not in [1, 2] }}
{{ '{:*^9}|{:,.1f}|{!r:>5}|{{x}}'.format('a', 1234.5, 'b') }}{{ '{n:03d}'.format(n=7) }}
{{ 'on 20240101: %5.1f%% %-4s' % (3.14159, 'a') }}{{ '%(a)s' | format(a=1) }}
{{ [1, 2.5] | sum }}{{ messages | map(attribute='content') | map('length') | sum }}{{ 'xaxx' | trim('x') }}{{ ' a ' | trim }}
{{ {'b': [1, {}], 'a': {}} | tojson(indent=2, sort_keys=true) }}{{ [1, 2] | tojson(separators=(',', ':')) }}{{ 7 // 2 - 1 }}
{% set text %}{{ 'a' ~ none ~ undefined }}{% endset %}{{ text | length }}{% set loud | upper %}loud{% endset %}{{ loud }}
{%- macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m([1], a=2) }}{{ 'a-b'.rsplit('-', 1) }}{{ 'x'.join(['a', 'b']) }}
{%- for k, v in {'b': 1, 'a': 2} | dictsort %}{{ k }}{{ v }}{% endfor %}{{ dict(a=1).items() | list }}{{ '0x1f' | int(0, 16) }}
{{ [3, 1] | sort | reverse | list }}{{ ['a', 'A'] | unique | list }}{{ messages | selectattr('role', 'in', ['user']) | first }}
"""


def compiled(text: str) -> ChatTemplate:
    return ChatTemplate.compile({"default": text}, source="file.jinja")


def render(text: str, messages: Any = CHAT, **options: Any) -> str:
    settings: dict[str, Any] = {
        "add_generation_prompt": True,
        "continue_final_message": False,
        "tools": None,
        "template_kwargs": None,
        "special_tokens": SPECIAL,
    }
    return compiled(text).render(messages, **(settings | options))


def transformers_render(text: str, messages: Any, *, add_generation_prompt: bool = True, tools: Any = None) -> str:
    from transformers.utils import chat_template_utils

    library: Any = chat_template_utils
    rendered, _ = library.render_jinja_template(
        conversations=[messages], tools=tools, chat_template=text, add_generation_prompt=add_generation_prompt, **SPECIAL
    )
    return str(rendered[0])


@pytest.mark.parametrize("text", [CHATML, TOOL_CALLS, LINES, MACRO, USES, "  {% if true %}\n  a\n  {% endif %}\n\nb\n"])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_renders_like_transformers(text: str, add_generation_prompt: bool, tools: Any) -> None:
    expected = transformers_render(text, CHAT, add_generation_prompt=add_generation_prompt, tools=tools)
    assert render(text, add_generation_prompt=add_generation_prompt, tools=tools) == expected


def test_tool_calls_come_with_their_arguments_as_an_object() -> None:
    def call(arguments: Any) -> Any:
        function = {"name": "f", "arguments": arguments}
        return [{"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}]

    assert render(TOOL_CALLS, call('{"a": "é"}')) == transformers_render(TOOL_CALLS, call({"a": "é"})) == '<s>f({"a": "é"})'
    assert render(TOOL_CALLS, call("")) == render(TOOL_CALLS, call(None)) == "<s>f({})"


def test_arguments_that_are_no_json_do_not_end_a_conversation() -> None:
    """A model's call was cut, say; the client sends it back with every turn."""

    def calls(*arguments: str) -> Any:
        made = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": text}} for text in arguments]
        return [{"role": "user", "content": "q"}, {"role": "assistant", "content": None, "tool_calls": made}]

    shown = "{% for c in messages[1].tool_calls %}{{ c.function.arguments }};{% endfor %}"
    for wrong in ('{"a": "cut', "[" * 100_000):
        told: list[str] = []
        assert render(shown, calls("{}", wrong), warn=told.append) == render(shown, calls("{}", wrong)) == "{};" + wrong + ";"
        assert told == ["a tool call among the messages has arguments that are no JSON object; the model sees them as they are"]
    told = []
    render(shown, calls(*["{"] * 9), warn=told.append)
    assert len(told) == 1
    for loop in (
        "{% for name, value in messages[1].tool_calls[0].function.arguments.items() %}{{ name }}={{ value }}{% endfor %}",
        "{% for name, value in messages[1].tool_calls[0]['function']['arguments'] | items %}{{ name }}={{ value }}{% endfor %}",
        "{% set f = messages[1].tool_calls[0].function %}{% for a in f.arguments %}{{ a }}={{ f.arguments[a] }}{% endfor %}",
        "{% set a = messages[1].tool_calls[0].function.arguments %}{% for k, v in a.items() %}{{ k }}={{ v }}{% endfor %}",
    ):
        told = []
        assert render(loop, calls('{"a": 1}'), warn=told.append) == "a=1" and not told
        for wrong in ('{"a": "cut', "[1]", "null"):
            told = []
            assert render(loop, calls(wrong), warn=told.append) == ""
            assert told == ["a tool call among the messages has arguments that are no JSON object; the model sees them as none"]


def test_a_missing_content_is_an_empty_text_and_unknown_keys_are_dropped() -> None:
    shown = "{% for m in messages %}{{ m | tojson(sort_keys=true) }}{% endfor %}"
    assert json.loads(render(shown, [{"role": "user", "evil": 1, "name": "n"}])) == {"role": "user", "content": "", "name": "n"}
    both = json.loads(render(shown, [{"role": "assistant", "content": "a", "reasoning_content": "r"}]))
    assert both["reasoning"] == both["reasoning_content"] == "r"


def test_parts_of_text_are_joined_unless_the_template_reads_parts() -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    assert render("{{ messages[0].content }}", [message]) == "a\nb"
    for loop in (
        "{% for p in messages[0]['content'] %}({{ p.type }} {{ p.text }}){% endfor %}",
        "{% for p in messages[0].content | selectattr('type', 'equalto', 'text') %}({{ p.type }} {{ p['text'] }}){% endfor %}",
        "{% for m in messages %}{% set c = m.content %}{% for p in c %}({{ p.type }} {{ p.text }}){% endfor %}{% endfor %}",
    ):
        assert render(loop, [message]) == "(text a)(text b)"
    assert render("{% for line in messages[0].content.split('\n') %}<{{ line }}>{% endfor %}", [message]) == "<a><b>"


@pytest.mark.parametrize(
    "messages",
    [
        [],
        ["text"],
        [{"content": "x"}],
        [{"role": 5, "content": "x"}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}],
        [{"role": "user", "content": [5]}],
        [{"role": "assistant", "content": [{"type": "thinking", "thinking": 5}]}],
        [{"role": "assistant", "tool_calls": 5}],
        [{"role": "assistant", "tool_calls": [5]}],
    ],
)
def test_malformed_messages_are_refused(messages: Any) -> None:
    with pytest.raises(ParameterError) as caught:
        render(CHATML, messages)
    assert caught.value.param == "messages"


def test_the_final_message_can_be_continued() -> None:
    chat = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "The answer"}]
    options: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}
    assert render(CHATML, chat, **options) == "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\nThe answer"
    parts = [{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert render("{{ messages[0].content }}!", parts, **options) == "a\nb"
    assert render("{% for p in messages[0].content %}{{ p.text }},{% endfor %}!", parts, **options) == "a,b"
    assert chat[1]["content"] == "The answer", "the caller's messages stay as they are"
    with pytest.raises(ParameterError, match="cannot continue"):
        render("{{ messages[0].content }}", chat, **options)
    with pytest.raises(ParameterError, match="both"):
        render(CHATML, chat, add_generation_prompt=True, continue_final_message=True)


def test_extra_variables_reach_the_template_but_replace_nothing_of_ours() -> None:
    assert render("{{ enable_thinking }}", template_kwargs={"enable_thinking": False}) == "False"
    nested = "{% for m in messages %}{% if a %}{% set b = c | default(1) %}{{ b }}{% endif %}{% endfor %}"
    assert render(nested, template_kwargs={"a": True, "c": 7}) == "7777"
    with pytest.raises(ParameterError, match="does not use 'd'") as unused:
        render(nested, template_kwargs={"a": True, "c": 1, "d": 1})
    assert unused.value.param == "chat_template_kwargs"
    for name in ("messages", "tools", "add_generation_prompt", "raise_exception", "a b", "render budget", ""):
        with pytest.raises(ParameterError) as caught:
            render("x", template_kwargs={name: 1})
        assert caught.value.param == "chat_template_kwargs"


def test_a_variable_that_changes_nothing_is_told_to_who_listens() -> None:
    told: list[str] = []
    extra = {"enable_thinking": False, "a": 1, "x" * 99: 1}
    assert render("{{ a }}", template_kwargs=extra, warn=told.append) == "1"
    assert told == [f"`chat_template_kwargs`: this model's chat template does not use 'enable_thinking', '{'x' * 64}'"]
    with pytest.raises(ParameterError, match="cannot set 'messages'"):
        render("{{ a }}", template_kwargs={"messages": []}, warn=told.append)


def test_a_template_without_developers_hears_them_as_the_system() -> None:
    shown = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    developer, user = {"role": "developer", "content": "Be brief."}, {"role": "user", "content": "q"}
    parts = {"role": "system", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "kind."}]}
    assert render(shown, [developer, user]) == "<system>Be brief.<user>q"
    assert render(shown, [parts, developer, user]) == "<system>Be\nkind.\n\nBe brief.<user>q"
    loops = "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{{ p.text or p }}{% endfor %}{% endfor %}"
    assert render(loops, [parts, developer, user]) == "<system>Be\nkind.\n\nBe brief.<user>q"
    assert render(shown, [{"role": "developer", "content": ""}, developer, user]) == "<system>Be brief.<user>q"
    assert render(shown, [user, developer]) == "<user>q<system>Be brief."
    assert render(shown, [parts, parts, user]) == "<system>Be\nkind.<system>Be\nkind.<user>q", "as the client wrote it"
    for knows in ("{% if 'developer' %}{% endif %}", '{{ "developer" and "" }}'):
        assert render(knows + shown, [parts, developer, user]) == "<system>Be\nkind.<developer>Be brief.<user>q"


def test_thinking_among_the_parts_is_the_messages_reasoning() -> None:
    shown = "{{ messages[0].reasoning_content }}|{{ messages[0].content }}"
    parts = [{"type": "thinking", "thinking": "Hm."}, {"type": "thinking", "thinking": "So."}, {"type": "text", "text": "Yes."}]
    assert render(shown, [{"role": "assistant", "content": parts}]) == "Hm.\nSo.|Yes."
    assert render(shown, [{"role": "assistant", "content": parts, "reasoning": "Mine."}]) == "Mine.|Yes."
    assert render(shown, [{"role": "assistant", "content": parts[:1]}]) == "Hm.|"
    loops = "{% for p in messages[0].content %}{{ p.type }}{{ p.text }}{% endfor %}"
    assert render(loops, [{"role": "assistant", "content": parts}]) == "textYes."


def test_the_templates_own_refusal_is_the_message() -> None:
    with pytest.raises(ParameterError) as caught:
        render("{{ raise_exception('Roles must alternate') }}")
    assert (str(caught.value), caught.value.param) == ("Roles must alternate", "messages")


@pytest.mark.parametrize(
    "text",
    [
        "{{ nothing.at_all }}",
        "{{ 1 / 0 }}",
        "{{ messages[99].role }}",
        "{{ messages | tojson(indent='x' * 3) }}",
        "{{ none + 1 }}",
        "{% include 'x' %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ undefined_function() }}",
        "{{ messages.append(1) }}",
    ],
)
def test_a_template_that_fails_is_one_line_not_a_traceback(text: str) -> None:
    with pytest.raises(ParameterError) as caught:
        render(text)
    assert caught.value.param == "messages"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__init__.__globals__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ self._TemplateReference__context.environment }}",
        "{{ cycler.__init__.__globals__.os.system('x') }}",
        "{{ ''|attr('__class__')|attr('__mro__') }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        "{{ ''.format_map.__self__.__class__ }}",
        "{{ lipsum.__globals__ }}",
        "{% set messages.x = 1 %}",
        "{{ messages[0].update({'role': 'x'}) }}",
    ],
)
def test_there_is_no_way_out_of_the_sandbox(text: str) -> None:
    try:
        shown = render(text)
    except (ParameterError, ConfigError):
        return
    assert shown == ""


@pytest.mark.parametrize(
    "text",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(40) }}",
        "{% for x in [1, 1] recursive %}{{ loop([1, 1]) if loop.depth < 40 }}{% endfor %}",
        "{% block b %}{{ self.b() }}{{ self.b() }}{% endblock %}",
        "{% macro c() %}{{ caller() }}{{ caller() }}{% endmacro %}" + "{% call c() %}" * 30 + "x" + "{% endcall %}" * 30,
        "{% for a in range(99999) %}{{ 'x' * 10000 }}{% endfor %}",
        "{% set ns = namespace(x='x') %}{% for a in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='x') %}{% for a in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for a in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=3) %}{% for a in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "{{ 'x' * 10 ** 10 }}",
        "{{ [0] * 10 ** 10 }}",
        "{{ 10 ** (10 ** 10) }}",
        "{{ 'x'.center(10 ** 10) }}",
        "{{ 'x'.ljust(10 ** 10) }}",
        "{{ 'x'.ljust(width=10 ** 10) }}",
        "{{ '7'.zfill(10 ** 10) }}",
        "{{ '\t'.expandtabs(10 ** 10) }}",
        "{{ ('a' * 99999).replace('a', 'a' * 99999) }}",
        "{{ ('a' * 99999) | replace('a', 'a' * 99999) }}",
        "{{ ('a' * 99999).join(['b'] * 99999) }}",
        "{{ (['b'] * 99999) | join('a' * 99999) }}",
        "{{ 'x' | center(10 ** 10) }}",
        "{{ 'x\ny' | indent(10 ** 10) }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (10 ** 10, 1) }}",
        "{{ '%999999999d' | format(1) }}",
        "{{ '{:>9999999999}'.format(1) }}",
        "{{ '{:>{w}}'.format(1, w=10 ** 10) }}",
        "{{ range(10 ** 10) | list }}",
        "{{ messages | tojson(indent=10 ** 9) }}",
        "{{ 1.5 | round(10 ** 9) }}",
        "{{ strftime_now('%Y' * 99999) }}",
        "{{ range(9999) | map('center', 10 ** 6) | list | length }}",
        "{{ ('a'.encode() * 10 ** 7) | length }}",
        "{{ (1).to_bytes(10 ** 7, 'big') | length }}",
        "{{ (('f' * 5000) | int(0, 16) % 3) is number }}",
        "{{ (1).from_bytes([255] * 5000) // 3 > 1 }}",
        "{{ '{0:{1[0]}}'.format('a', [10 ** 7]) | length }}",
        "{{ ('{0}' * 99).format('a' * 99999) | length }}",
        "{{ ('{0.x}' * 99).format(namespace(x='a' * 99999)) | length }}",
        "{{ (('%(a)s' * 99) % dict(a='a' * 99999)) | length }}",
        "{{ ('%((a))9999999d' % {'(a)': 1}) | length }}",
        "{{ ('{:f}' * 99999).format(*[1.5] * 99999) | length }}",
        "{{ ([none] * 99) | map('default', 'a' * 999999, true) | list | length }}",
        "{{ ('a' * 999999).split('a') | length }}",
        "{{ ([[[[[[1] * 50000]]]]] | tojson(indent=16)) | length }}",
        "{{ ([1] * 9999) | tojson(separators=('x' * 9999, ':')) | length }}",
        "{% set s = 'x' * 999999 %}{% set kept = namespace(x=[]) %}"
        "{% for a in range(999) %}{% set kept.x = kept.x + [s[1:]] %}{% endfor %}",
        "{% set s = 'x' * 999999 %}{% set kept = namespace(x=[]) %}"
        "{% for a in range(999) %}{% set kept.x = kept.x + [s | upper] %}{% endfor %}",
        "{% set ns = namespace(x='x') %}{% for a in range(24) %}{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}",
        "{% macro m() %}{% for a in range(9999) %}" + "x" * 9999 + "{% endfor %}{% endmacro %}{{ m() | length }}",
        "{% set t = (1,) * 500000 %}{% set x = {" + "t: 1, " * 999 + "} %}",
        "{% set s = ['ab'] * 9999 %}{{ s | select('in', 'x' * 999999) | list | length }}",
    ],
)
def test_bombs_do_not_go_off(text: str) -> None:
    with pytest.raises(ParameterError) as caught:
        render(text, max_seconds=0.2)
    assert caught.value.param == "messages"


NEST = "{% set ns = namespace(a=('x',), b=('x',)) %}"
DOUBLED = NEST + "{% for i in range(22) %}{% set ns.a = (ns.a, ns.a) %}{% set ns.b = (ns.b, ns.b) %}{% endfor %}"


@pytest.mark.parametrize(
    "text",
    [
        DOUBLED + "{{ ns.a | string | length }}",
        DOUBLED + "{{ ns.a == ns.b }}",
        DOUBLED + "{{ {ns.a: 1} | length }}",
        DOUBLED.replace("(ns.a, ns.a)", "[ns.a, ns.a]") + "{{ ns.a | tojson | length }}",
        DOUBLED.replace("(ns.a, ns.a)", "{1: ns.a, 2: ns.a}.values()") + "{{ ns.a | string | length }}",
        DOUBLED.replace("(ns.a, ns.a)", "dict.fromkeys([1, 2], ns.a)") + "{{ ns.a | string | length }}",
        DOUBLED.replace("(ns.a, ns.a)", "[ns.a] + [ns.a]") + "{{ ns.a | string | length }}",
        DOUBLED.replace("(ns.a, ns.a)", "[ns.a] * 2") + "{{ ns.a | string | length }}",
        "{% macro m(ns) %}{% set ns.a = varargs %}{% endmacro %}"
        + NEST
        + "{% for i in range(22) %}{{ m(ns, ns.a, ns.a) }}{% endfor %}{{ ns.a | string | length }}",
        "{{ ([[1]] * 20000) | sum(start=[]) | length }}",
        "{{ ('a' * 99999).rfind('ab' + 'a' * 49999) }}",
        "{{ ('a' * 99999).strip('b' * 9999) | length }}",
        "{{ ('a' * 99999) | trim('b' * 9999) | length }}",
        NEST + "{% for i in range(9999) %}{% set ns.a = (ns.a,) %}{% endfor %}{{ {ns.a: 1} | length }}",
    ],
)
def test_what_the_clock_comes_too_late_for_is_not_begun(text: str) -> None:
    with pytest.raises(ParameterError, match=r"too much|can only concatenate"):
        render(text, max_seconds=60)


def test_a_namespace_does_not_write_out_its_contents() -> None:
    text = "{% set n = namespace(a=1) %}" + "{% set n = namespace(a=n, b=n) %}" * 22
    assert render(text + "{{ n }}") == "<Namespace>"


def test_the_output_has_a_limit() -> None:
    assert len(render("{{ 'x' * 1000 }}", max_characters=1000)) == 1000
    with pytest.raises(ParameterError, match="too long"):
        render("{{ 'x' * 1001 }}", max_characters=1000)


def test_long_conversations_fit() -> None:
    chat = [{"role": "user", "content": "x" * 1000}, {"role": "assistant", "content": "y" * 1000}] * 1000
    assert len(render(CHATML, chat, max_seconds=60)) > 2_000_000


BROKEN = [
    "{% for %}",
    "{{ x | batch(3) }}",
    "{{ x | striptags }}",
    "{{",
    "{% endfor %}",
    "x" * (2**20 + 1),
    "{{ " + "(" * 999 + "1",
]


@pytest.mark.parametrize("text", BROKEN, ids=map(str, range(len(BROKEN))))
def test_what_does_not_compile_names_the_file(text: str) -> None:
    with pytest.raises(ConfigError, match=r"file\.jinja") as caught:
        compiled(text)
    assert "\n" not in str(caught.value)


def test_strftime_now() -> None:
    from datetime import datetime

    before = datetime.now().year
    assert before <= int(render("{{ strftime_now('%Y') }}")) <= datetime.now().year
