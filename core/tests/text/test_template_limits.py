"""Hostile templates: stopped within a bounded time, before they make anything large, and never by the process's own limits."""

from __future__ import annotations

import time

import pytest

from tensorsharp.errors import TemplateError
from tensorsharp.text import limits
from tensorsharp.text.sandbox import MAX_SOURCE
from tensorsharp.text.template import ChatTemplate

BIG = "{% set big = 'x' * 4000000 %}"
NESTED = "{% set a0 = ['x'] * 50 %}" + "".join(f"{{% set a{i + 1} = [{', '.join([f'a{i}'] * 10)}] %}}" for i in range(12))
NOT_TOO_NESTED = "{% set a0 = ['x'] * 50 %}" + "".join(f"{{% set a{i + 1} = [{', '.join([f'a{i}'] * 10)}] %}}" for i in range(3))
DOUBLING = "".join(f"{{% set s{i + 1} = s{i} {{op}} s{i} %}}" for i in range(60))

ENDLESS = {
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "nested loops over text": "{% for a in 'x' * 99999 %}{% for b in 'x' * 99999 %}{% endfor %}{% endfor %}",
    "loops with a condition": "{% for i in range(99999) %}{% for j in range(99999) if j < 0 %}{% endfor %}{% endfor %}",
    "recursive loop": "{% for i in [[]] recursive %}{{ loop([[]]) }}{% endfor %}",
    "broad recursive loop": "{% for i in range(9) recursive %}{{ loop(range(9)) if loop.depth < 99 }}{% endfor %}",
    "macro that calls itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "macro that calls itself twice": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "block that shows itself": "{% block a %}{{ self.a() }}{% endblock %}",
    "map of map": "{% for i in range(99999) %}{% set x = range(99999) | map('string') | list %}{% endfor %}",
    "chain of lazy filters": "{% set x = range(99999) %}" + "{% set x = x | map('int') %}" * 400 + "{{ x | list | length }}",
    "chain of select": "{% set x = range(99999) %}" + "{% set x = x | select('ge', 0) %}" * 400 + "{{ x | list | length }}",
    "sorting": BIG + "{% for i in range(99999) %}{% set x = (range(99999) | list) | sort(reverse=true) %}{% endfor %}",
    "searching": BIG + "{% for i in range(99999) %}{% if 'xy' in big %}{% endif %}{% endfor %}",
    "comparing nested lists": NOT_TOO_NESTED
    + NOT_TOO_NESTED.replace("a", "b")
    + "{% for i in range(99999) %}{% if a3 == b3 and a3 == b3 %}{% endif %}{% endfor %}",
    "testing nested lists": NOT_TOO_NESTED
    + NOT_TOO_NESTED.replace("a", "b")
    + "{% for i in range(99999) %}{% if a3 is eq(b3) %}{% endif %}{% endfor %}",
    "counting": BIG + "{% for i in range(99999) %}{% set n = big.count('xy') %}{% endfor %}",
}
LARGE = {
    "text times number": "{{ 'x' * 9999999999 }}",
    "number times text": "{{ 9999999999 * 'x' }}",
    "list times number": "{% set a = [1] * 9999999999 %}",
    "tuple times number": "{% set a = (1,) * 9999999999 %}",
    "doubling with +": "{% set s0 = 'xxxxxxxx' %}" + DOUBLING.replace("{op}", "+"),
    "doubling with ~": "{% set s0 = 'xxxxxxxx' %}" + DOUBLING.replace("{op}", "~"),
    "doubling a list": "{% set s0 = [1, 2] %}" + DOUBLING.replace("{op}", "+"),
    "doubling in a block": "{% set s = 'xxxxxxxx' %}" + "{% set s %}{{ s }}{{ s }}{% endset %}" * 60,
    "doubling in a macro": "{% macro d(x) %}{{ x }}{{ x }}{% endmacro %}{% set s = 'xxxxxxxx' %}" + "{% set s = d(s) %}" * 60,
    "doubling in a filter block": "{% set s = 'xxxxxxxx' %}"
    + "{% set s %}{% filter upper %}{{ s }}{{ s }}{% endfilter %}{% endset %}" * 60,
    "doubling with replace": "{% set s = 'xx' %}" + "{% set s = s.replace('x', s) %}" * 60,
    "doubling with the replace filter": "{% set s = 'xx' %}" + "{% set s = s | replace('x', s) %}" * 60,
    "doubling with join": "{% set s = 'xx' %}" + "{% set s = [s, s] | join(s) %}" * 60,
    "doubling with str.join": "{% set s = 'xx' %}" + "{% set s = s.join([s, s]) %}" * 60,
    "doubling with format": "{% set s = 'xx' %}" + "{% set s = '{0}{0}'.format(s) %}" * 60,
    "doubling with %": "{% set s = 'xx' %}" + "{% set s = '%s%s' % (s, s) %}" * 60,
    "doubling with the format filter": "{% set s = 'xx' %}" + "{% set s = '%s%s' | format(s, s) %}" * 60,
    "doubling escapes": "{% set s = '<' %}"
    + "{% set s = s | safe | forceescape %}" * 60
    + "{% set s = s | e | string | escape %}",
    "many copies of one text": BIG + "{% set l = [big] * 9999 %}{{ l | join }}",
    "many copies with str.join": BIG + "{% set l = [big] * 9999 %}{{ ''.join(l) }}",
    "center": "{{ 'x'.center(9999999999) }}",
    "ljust": "{{ 'x'.ljust(9999999999) }}",
    "rjust": "{{ 'x'.rjust(9999999999) }}",
    "zfill": "{{ 'x'.zfill(9999999999) }}",
    "expandtabs": "{{ ('\t' * 100000).expandtabs(100000) }}",
    "expandtabs by name": "{{ ('\t' * 100000).expandtabs(tabsize=100000) }}",
    "center filter": "{{ 'x' | center(9999999999) }}",
    "center filter in map": "{{ ['x'] | map('center', 9999999999) | list }}",
    "indent filter": "{{ ('\n' * 100000) | indent(9999) }}",
    "indent filter with text": BIG + "{{ ('\n' * 100000) | indent(big) }}",
    "batch": "{{ [1] | batch(9999999999, 0) | list }}",
    "slice": "{{ [1] | slice(9999999999) | list }}",
    "truncate": "{{ 'x' | truncate(9999999999999) }}",
    "width in %": "{{ '%9999999999d' % 1 }}",
    "precision in %": "{{ '%.9999999999f' % 1.0 }}",
    "width in an argument of %": "{{ '%*d' % (9999999999, 1) }}",
    "named width in an argument": "{{ '%(a)*d' % {'a': 1} }}",
    "width in format": "{{ '{:>9999999999}'.format(1) }}",
    "width in an argument of format": "{{ '{:>{}}'.format(1, 9999999999) }}",
    "text width in an argument of format": "{{ '{:>{}}'.format(1, '9999999999') }}",
    "width in format_map": "{{ '{a:>9999999999}'.format_map({'a': 1}) }}",
    "width in the format filter": "{{ '%9999999999d' | format(1) }}",
    "many widths": "{{ ('%9999d' * 9999) % ((1,) * 9999) }}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "power of a power": "{% set x = 9 ** 999 %}{{ x ** 999 }}",
    "power by a variable": "{% set n = 999999999 %}{{ 2 ** n }}",
    "products": "{% set x = 9 ** 999 %}" + "{% set x = x * x %}" * 60,
    "a huge literal": "{{ 0x" + "f" * 50000 + " // 3 }}",
    "a huge literal that a test divides": "{{ 0x" + "f" * 50000 + " is divisibleby(3) }}",
    "rounding": "{{ 1.5 | round(999999999, 'ceil') }}",
    "to_bytes": "{{ (1).to_bytes(9999999999, 'big') }}",
    "from_bytes": "{{ (1).from_bytes('x'.encode() * 999999, 'big') }}",
    "translate": "{{ ('x' * 9999).translate({120: 'y' * 9999}) }}",
    "range": "{{ range(9999999999) | list }}",
    "nested lists": NESTED + "{{ a12 }}",
    "nested lists as JSON": NESTED + "{{ a12 | tojson }}",
    "nested lists as text": NESTED + "{{ a12 | string | length }}",
    "nested lists compared": NESTED + NESTED.replace("a", "b") + "{{ a12 == b12 }}",
    "nested dicts": "{% set a = {'a': 1, 'b': 2} %}" + "{% set a = {'a': a, 'b': a, 'c': a} %}" * 60 + "{{ a }}",
    "nested dict() calls": "{% set a = dict(a=1) %}" + "{% set a = dict(a=a, b=a, c=a) %}" * 60 + "{{ a }}",
    "nested tuples": "{% set a = (1, 2) %}" + "{% set a = (a, a, a) %}" * 60 + "{{ a }}",
    "nested items": "{% set a = {'a': 1} %}" + "{% set a = {'a': a.items(), 'b': a.items(), 'c': a.values()} %}" * 60 + "{{ a }}",
    "lists of a namespace": "{% set ns = namespace(x=1) %}{% set a = [ns] * 9999 %}{% set ns.x = 'x' * 999999 %}{{ a }}",
    "nested namespaces": "".join(f"{{% set n{i} = namespace() %}}" for i in range(60))
    + "".join(f"{{% set n{i}.a = n{i + 1} %}}{{% set n{i}.b = n{i + 1} %}}" for i in range(59))
    + "{{ n0 }}",
    "sum of lists": "{{ ([[1] * 9] * 999) | sum(start=[]) }}",
    "slices kept": BIG + "".join(f"{{% set s{i} = big[{i + 1}:] %}}" for i in range(1500)),
    "splits kept": BIG + "".join(f"{{% set s{i} = big.split('x') %}}" for i in range(500)),
    "a list of characters": BIG + "".join(f"{{% set s{i} = big | list %}}" for i in range(500)),
    "output": BIG + "{{ big }}" * 999,
    "output in a loop": "{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}",
    "output in a macro": "{% macro m() %}{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}{% endmacro %}{% set x = m() %}",
    "indented JSON": "{{ [[1] * 9999] | tojson(indent=999999) }}",
    "JSON separators": "{{ ([1] * 99999) | tojson(separators=('x' * 99999, ':')) }}",
    "JSON indent text": "{{ ([1] * 9999) | tojson(indent='x' * 9999) }}",
    "date": "{{ strftime_now('%9999999999d') }}",
    "long date": "{{ strftime_now('%c' * 999999) }}",
    "cycler": "{% set c = cycler('x' * 99999) %}{% for i in range(99999) %}{{ c.next() }}{% endfor %}",
}


@pytest.mark.parametrize("source", [*ENDLESS.values(), *LARGE.values()], ids=[*ENDLESS, *LARGE])
def test_is_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SECONDS", 0.1)
    before = time.thread_time()
    with pytest.raises(TemplateError) as caught:
        ChatTemplate(source).render([])
    # Compiling a template of the greatest length takes a second or two; rendering stops SECONDS and one operation later.
    assert time.thread_time() - before < 5
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


def test_says_that_it_was_stopped_and_where() -> None:
    with pytest.raises(TemplateError, match=r"^m\.gguf, line 2: the template was stopped: it makes too much text$"):
        ChatTemplate("{% if true %}\n{{ 'x' * 99999999 }}{% endif %}", where="m.gguf").render([])


def test_a_template_that_is_too_long_is_refused_before_it_is_read() -> None:
    with pytest.raises(TemplateError, match="more than"):
        ChatTemplate("x" * (MAX_SOURCE + 1))


def test_deep_nesting_is_refused() -> None:
    for source in ("{{ " + "(" * 50000 + "1" + ")" * 50000 + " }}", "{% if true %}" * 5000 + "{% endif %}" * 5000):
        with pytest.raises(TemplateError):
            ChatTemplate(source)


def test_nothing_is_executed_while_compiling() -> None:
    ChatTemplate("{{ 'x' * 9999999999 }}{{ 9 ** 9 ** 9 }}{{ 'x' | center(9999999999) }}{{ [1] * 9999999999 }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ self._TemplateReference__context }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ (messages | map(attribute='__class__') | list)[0].__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{% extends '/etc/passwd' %}",
        "{{ lipsum(n=99) }}",
        "{{ open('/etc/passwd') }}",
    ],
)
def test_reaches_nothing_outside(source: str) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    try:
        shown = ChatTemplate(source).render(messages)
    except TemplateError:
        shown = ""
    assert shown in ("", "[]")
    assert messages == [{"role": "user", "content": "Hi"}]


def test_a_conversation_that_is_long_itself_renders() -> None:
    template = ChatTemplate(
        "{% for m in messages %}{% set c = m.content.split('</think>')[-1] | trim %}"
        "{{ '<|im_start|>' ~ m.role ~ '\n' + c + '<|im_end|>\n' }}{% endfor %}"
    )
    messages = [{"role": "user", "content": "word " * 40000} for _ in range(40)]
    assert len(messages[0]["content"]) * 40 < limits.TOTAL
    text = template.render(messages)
    assert text == f"<|im_start|>user\n{('word ' * 40000).strip()}<|im_end|>\n" * 40


def test_a_conversation_of_many_messages_renders() -> None:
    template = ChatTemplate(
        "{% for m in messages %}{% if 'content' in m and m.role != 'tool' %}{{ m.content }}{% endif %}{% endfor %}"
    )
    assert template.render([{"role": "user", "content": "x"}] * 20000) == "x" * 20000
