"""A stranger's chat template ends, in bounded space, with its text or one sentence; a common one renders as ever."""

import shutil
import tracemalloc

import pytest

from etude.errors import CheckpointError, InvalidRequest
from etude.models.chat import open_chat
from etude.models.chat_template import _ENVIRONMENT, ChatTemplate, Message
from etude.models.shipped import shipped_model
from etude.models.template_methods import METHODS


def grown(step, start="'x'", after=""):
    return (
        f"{{% set ns = namespace(n={start}) %}}{{% for a in range(1000) %}}{step}{{% endfor %}}{after or '{{ ns.n }}'}"
    )


LOOP = "{% for a in range(99999) %}"
ENDLESS = {
    "a range": "{% for a in range(10**9) %}x{% endfor %}",
    "nested": LOOP * 3 + "{% endfor %}" * 3,
    "filtered": LOOP + "{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
    "recursive": "{% for a in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
    "a macro": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "callers": "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}"
    + "{% call m() %}" * 15
    + "{% endcall %}" * 15,
    "a block": "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
    "power": "{{ 10 ** 10 ** 10 }}{{ 10 ** (10 ** 10) }}",
    "squares": grown("{% set ns.n = ns.n * ns.n %}", "7"),
    "times": "{{ 'x' * 10**9 }}",
    "a list": "{{ ['x'] * 10**9 }}",
    "sums": grown("{% set ns.n = ns.n + ns.n %}"),
    "tildes": grown("{% set ns.n = ns.n ~ ns.n %}"),
    "set blocks": grown("{% set b %}{{ ns.n }}{{ ns.n }}{% endset %}{% set ns.n = b %}"),
    "lists in lists": grown("{% set ns.n = [ns.n, ns.n] %}"),
    "items of items": grown("{% set ns.n = {'a': ns.n.items(), 'b': ns.n.items()} %}", "{'a': 1}"),
    "names in names": grown("{% set ns.n = namespace(a=ns.n, b=ns.n) %}"),
    "itself": "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}",
    "keys": grown("{% set ns.n = (ns.n, ns.n) %}", after="{{ {ns.n: 1} }}"),
    "text": LOOP + "y" * 100_000 + "{% endfor %}",
    "text of a macro": "{% macro m() %}" + "y" * 100_000 + "{% endmacro %}" + LOOP + "{{ m() }}{% endfor %}",
    "slices": "{% set s = 'x' * 1000000 %}" + LOOP + "{% if s[1:] %}{% endif %}{% endfor %}",
    "equality": "{% set s = 'x' * 999999 %}{% set t = 'x' * 999999 %}" + LOOP + "{{ s == t }}{% endfor %}",
    "a search": "{% set l = range(99999)|list %}" + LOOP + "{{ -1 in l }}{% endfor %}",
    "a test": LOOP + "{{ 'x' is in range(99999) }}{% endfor %}",
    "largest": LOOP + "{{ range(99999)|max }}{% endfor %}",
    "a method": LOOP + "{{ ('x' * 999999).count('y') }}{% endfor %}",
    "center": "{{ 'x'|center(10**9) }}",
    "ljust": "{{ 'x'.ljust(10**9) }}",
    "centres": "{{ range(99999)|map('string')|map('center', 9999)|list }}",
    "a filter block": "{% filter center(10**9) %}x{% endfilter %}",
    "format": "{{ '{:999999999}'.format(1) }}",
    "format of format": "{{ '{:{}}'.format(1, '999999999') }}",
    "percent": "{{ '%999999999d' % 1 }}",
    "a star": "{{ '%*d' % (999999999, 1) }}",
    "the filter": "{{ '%999999999d'|format(1) }}",
    "replace": "{{ ('x' * 999999)|replace('x', 'y' * 999999) }}",
    "replace between": "{{ ('x' * 999999).replace('', 'y' * 999999) }}",
    "join": "{{ range(99999)|join('y' * 999999) }}",
    "join by": "{{ ('y' * 999999).join(['x'] * 99999) }}",
    "indent": "{{ ('\\n' * 999999)|indent(9999) }}",
    "indent by": "{{ ('\\n' * 999999)|indent('y' * 999999) }}",
    "JSON": grown("{% if loop.index < 300 %}{% set ns.n = [ns.n] %}{% endif %}", "range(999)|list",
                  "{{ ns.n|tojson(indent=9999) }}"),
    "tabs": "{{ '\\t'.expandtabs(10**9) }}",
    "a table": "{{ 'a'.translate({97: 'x' * 999999}) }}",
    "filler": "{{ lipsum(10**9) }}",
    "batches": "{{ [1]|batch(10**9, 'x')|list }}",
    "a long template": "x" * 140_000,
    "deep": "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    "deep loops": "{% for a in [1] %}" * 60 + "{% endfor %}" * 60,
    "digits": "{{ " + "9" * 6000 + " }}",
    "a file": "{% include '/etc/hostname' %}",
}  # fmt: skip

WORD = "{% set p = 'a' * 150000 ~ 'b' ~ 'a' * 150000 %}"
IN_C = {
    "from the right": WORD + "{{ ('a' * 600000).rfind(p) }}",
    "parted from the right": WORD + "{{ ('a' * 600000).rsplit(p) }}",
    "a long word": WORD + "{{ ('a' * 600000).count(p) }}",
    "a long word by name": WORD + "{{ ('a' * 600000).split(maxsplit=9, sep=p) }}",
    "a long word inside": WORD + "{{ p in 'a' * 600000 }}",
    "a long word not inside": WORD + "{{ p not in 'a' * 600000 }}",
    "a long word by a test": WORD + "{{ p is in('a' * 600000) }}",
    "many characters to strip": "{{ ('a' * 999999).strip('b' * 999999 ~ 'a') }}",
    "many characters to trim": "{{ ('a' * 999999)|trim('b' * 999999 ~ 'a') }}",
    "tags": "{{ ('<!---->' * 300000)|striptags }}",
    "numbers of one hash": "{{ range(0, 99999 * (2**61 - 1), 2**61 - 1)|unique|list }}",
    "powers of ten": "{{ 1|round(-10**9) }}",
    "widths": "{{ ('{0:9999}' * 150000).format(1) }}",
    "widths in brackets": "{{ '{0[}]:{1}}'.format({'}': 'a'}, 1999999999) }}",
    "a width in brackets": "{{ '{a[}]:1999999999}'.format(a={'}': 'a'}) }}",
    "a value often": "{{ ('{0}' * 900).format('x' * 999999) }}",
    "fields of a map": "{{ ('{a:9999}' * 150000).format_map({'a': 1}) }}",
    "percents": "{{ ('%(a)9999d' * 150000) % {'a': 1} }}",
    "places": "{{ ('%(a).9999f' * 150000) % {'a': 1.5} }}",
    "a value often by name": "{{ ('%(a)s' * 900) % {'a': 'x' * 999999} }}",
    "percents of a filter": "{{ ('%(a)9999d' * 150000)|format(a=1) }}",
    "bytes": "{{ 'a'.encode().ljust(1500000000) }}",
    "a number's bytes": "{{ (1).to_bytes(1500000000, 'big') }}",
    "replace by name": "{{ ('x' * 9999)|replace(new='y' * 99999, old='x') }}",
    "replace in a list": "{{ (['x'] * 9999)|replace('x', 'y' * 99999) }}",
    "join what comes": "{{ ('y' * 2900).join(range(99999)|map('string')) }}",
    "join by what comes": "{{ range(99999)|map('string')|join('y' * 2900) }}",
    "join by a list": "{{ range(99999)|join(['y'] * 9999) }}",
    "a wide date": "{{ strftime_now('%999Y') }}",
    "a long date": "{{ strftime_now('%Y' * 101) }}",
}  # fmt: skip
"""What Python would do in one step of its own, in which nothing is counted."""
ENDLESS |= IN_C


@pytest.mark.parametrize("name", ENDLESS)
def test_what_would_not_end_or_grows_without_end_is_refused_in_one_sentence(name):
    with pytest.raises((CheckpointError, InvalidRequest), match=r"^a file: .*chat template") as caught:
        ChatTemplate(ENDLESS[name], {}, "a file").render([Message("user", "hello")], True)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


@pytest.mark.parametrize("name", IN_C)
def test_it_is_refused_before_python_begins(name):
    """A step in C shows in the memory that it takes, where it does not show in steps: none takes as much as this."""
    tracemalloc.start()
    try:
        with pytest.raises((CheckpointError, InvalidRequest)):
            ChatTemplate(IN_C[name], {}, "a file").render([Message("user", "hello")], True)
        assert tracemalloc.get_traced_memory()[1] < 250 << 20
    finally:
        tracemalloc.stop()


def test_python_s_own_types_have_the_methods_that_have_a_price():
    made = ["x", {}, [], (), 1, True, 1.5, b"x", range(3), {}.keys(), (each for each in ()), str, dict]
    for value in made:
        for name in dir(value):
            safe = _ENVIRONMENT.is_safe_attribute(value, name, getattr(value, name, None))
            assert safe == any(name in METHODS[kind] for kind in METHODS if isinstance(value, kind)), (value, name)


def test_such_a_template_is_refused_when_a_checkpoint_is_opened(tmp_path):
    shutil.copyfile(shipped_model() / "tokenizer.json", tmp_path / "tokenizer.json")
    (tmp_path / "chat_template.jinja").write_text(ENDLESS["nested"])
    with pytest.raises(
        InvalidRequest, match=r"chat_template\.jinja: the chat template does more than one may: it works"
    ):
        open_chat(tmp_path)


def test_a_template_that_refuses_is_quoted():
    with pytest.raises(InvalidRequest, match=r"refuses these messages: roles must alternate$"):
        ChatTemplate("{{ raise_exception('roles must alternate') }}", {}, "a file").render([], True)


CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""SmolLM2's."""
THINKING = r"""{%- if tools %}{{- tools | tojson }}{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or (not loop.last and reasoning_content)) %}
            {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""  # noqa: E501
"""Qwen3's, without tools."""
DATED = r"""{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}{%- set system_message = "" %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\nToday Date: " ~ date_string ~ "\n\n" + system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"""
"""Llama 3's, without tools."""
ODD = (
    "{%- macro said(text, width=2) -%}{{ text | indent(width) }}{{ varargs }}{%- endmacro -%}"
    "{%- for role, group in messages | groupby('role') recursive %}{{ loop.length }}{{ loop.revindex }}{{ role }}"
    "{{ group | map(attribute='content') | map('upper') | join('-') }}{{ loop.changed(role) }}{% else %}-{% endfor %}"
    "{{ said(messages[-1].content) }}{{ '%s of %05.1f' % ('a', 1) }}{{ '%s' | format(3) }}"
    "{{ '{:>6}|{}'.format('a', 2) }}{{ '{a:04}{{}}{b!r}'.format(a=3, b='c') }}{{ '%-4s|%+d' % ('a', 3) }}"
    "{{ '%(a)s 5%%' % {'a': 'x'} }}{{ '{a}'.format_map({'a': 2}) }}{{ ' a-b '.strip().partition('-') }}"
    "{{ ', '.join(messages | map(attribute='role')) }}{{ messages | join(', ', attribute='role') }}"
    "{{ 'aXbX'.split('X', 1) }}{{ 'ab'.startswith(('a', 'c')) }}{{ 'a\nb'.splitlines() | last }}{{ 'abc'.find('c') }}"
    "{{ messages[0].get('name', 'nobody') }}{% for key, value in messages[0].items() %}{{ key }}{{ value }}{% endfor %}"
    "{{ 'b' not in 'abc' or 'a' in ['a'] }}{{ 'ab' is in 'abc' }}{{ 5 | replace('5', 'six') }}{{ [1, 2].index(2) }}"
    "{{ 'a' | replace(new='b', old='a') }}{{ strftime_now('%-d %B %Y') | length > 9 }}{{ 'x7'.lstrip('x').isdigit() }}"
    "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}{{ {'b': none, 'a': 1.5} | dictsort }}"
    "{% for each in messages | rejectattr('role', 'equalto', 'user') if each.content %}{{ loop.cycle('x', 'y') }}"
    "{{ each.content | replace('e', 'EE') | title }}{% endfor %}{{ 2 ** 10 * 3 % 7 }}{{ 20000 | string ~ nothing }}"
    "{{ (messages + messages) | length }}{{ [1, 2] * 2 }}{{ 20001 is gt 9 }}{{ 'a' if 'a' in 'cab' and 1 < 2 <= 2 }}"
    "{% with a = 'q' * 3 %}{{ a }}{% endwith %}{% filter upper %}shout{% endfilter %}{% set b %}kept{% endset %}{{ b }}"
    "{% for a in [[1, [2]]] recursive %}{{ loop(a) if a is iterable else a }}{% endfor %}{{ messages[1:] | first }}"
)
"""What no one template has together."""


@pytest.mark.parametrize("template", [CHATML, THINKING, DATED, ODD])
@pytest.mark.parametrize("reply", [True, False])
def test_templates_render_as_transformers_renders_them(template, reply):
    utils = pytest.importorskip("transformers.utils.chat_template_utils", reason="parity needs the dev extra")
    talk = [
        Message("system", " Be brief. "), Message("user", "née\nwhere?"),
        Message("assistant", "<think>\nhm\n</think>\n\nhere"),
        Message("user", "<tool_response>\nok\n</tool_response>"), Message("assistant", "done"),
    ]  # fmt: skip
    for messages in (talk, talk[1:]):
        told = [each._asdict() for each in messages]
        [expected], _ = utils.render_jinja_template(
            [told], chat_template=template, add_generation_prompt=reply, bos_token="<s>"
        )
        assert ChatTemplate(template, {"bos_token": "<s>"}, "a file").render(messages, reply) == expected


@pytest.mark.parametrize("template", [CHATML, THINKING, DATED])
def test_long_conversations_are_no_misuse(template):
    talk = [Message("user" if n % 2 == 0 else "assistant", f"{n} " * 500) for n in range(2000)]
    assert "1999 1999" in ChatTemplate(template, {"bos_token": ""}, "a file").render(talk, True)
    once = [Message("user", "x" * 5_000_000)]
    assert len(ChatTemplate(template, {"bos_token": ""}, "a file").render(once, True)) > 5_000_000
