"""Chat templates render as they do in transformers, and say where they fail."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tensorsharp.errors import ModelError, TemplateError
from tensorsharp.text.template import ChatTemplate, load_template

USER = {"role": "user", "content": "Hi"}
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def render(source: str, messages: Any = (USER,), **more: Any) -> str:
    return ChatTemplate(source, "<s>", "</s>").render(messages, **more)


def file(**metadata: Any) -> Any:
    """A model file as far as templates are concerned; `__` in a name stands for a dot."""
    return SimpleNamespace(path="m.gguf", metadata={key.replace("__", "."): value for key, value in metadata.items()})


def test_smollm2() -> None:
    template = ChatTemplate(SMOLLM2)
    system = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    assert template.render([USER]) == f"{system}<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert template.render([USER], add_generation_prompt=False) == f"{system}<|im_start|>user\nHi<|im_end|>\n"
    assert (
        template.render([{"role": "system", "content": "Be brief."}, USER, {"role": "assistant", "content": "Yes?"}, USER])
        == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nYes?<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_content_is_text_not_template() -> None:
    for content in ("{{ 7 * 7 }}", "{% for i in range(9) %}x{% endfor %}", "{# gone #}", "<b>&amp;\"'</b>"):
        assert render("{{ messages[0].content }}", [{"role": "user", "content": content}]) == content


def test_names_that_templates_expect() -> None:
    assert render("{{ bos_token }}{{ eos_token }}{{ tools is none }}{{ documents is none }}{{ x }}", x=3) == "<s></s>TrueTrue3"
    assert render("{{ tools[0].name }}", tools=[{"name": "f"}]) == "f"
    assert ChatTemplate("{{ bos_token }}|{{ eos_token }}").render([]) == "|"


def test_blocks_leave_no_lines_behind() -> None:
    assert render("{% if true %}\n  {% if true %}\nx\n  {% endif %}\n{% endif %}\ny\n") == "x\ny"


def test_break_continue_and_generation() -> None:
    steps = "{% if i == 1 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}"
    assert render("{% for i in range(9) %}" + steps + "{% endfor %}") == "023"
    assert render("a{% generation %}b{{ messages[0].content }}{% endgeneration %}c") == "abHic"


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("{'b': 1, 'a': 'é<&>'} | tojson", '{"b": 1, "a": "é<&>"}'),
        ("{'b': 1, 'a': 'é'} | tojson(ensure_ascii=true, sort_keys=true)", '{"a": "\\u00e9", "b": 1}'),
        ("[1, [2]] | tojson(indent=2)", "[\n  1,\n  [\n    2\n  ]\n]"),
        ("[1, {'a': none}] | tojson(separators=(',', ':'))", '[1,{"a":null}]'),
        ("true | tojson", "true"),
        ("messages | tojson", '[{"role": "user", "content": "Hi"}]'),
        ("messages | map(attribute='role') | join(', ')", "user"),
        ("messages | selectattr('role', 'equalto', 'user') | list | length", "1"),
        ("('a,b,c'.split(',') | reverse | list)[0]", "c"),
        ("'{:>5}|{}'.format('x', 1)", "    x|1"),
        ("'%s-%05.1f' % ('x', 2.5)", "x-002.5"),
        ("'%s' | format('x')", "x"),
        ("'a\nb' | indent(2)", "a\n  b"),
        ("'a' ~ 1 ~ none ~ [1]", "a1None[1]"),
        ("[3, 1, 2] | sort | string", "[1, 2, 3]"),
        ("{'b': 1, 'a': 2} | dictsort | string", "[('a', 2), ('b', 1)]"),
        ("{'a': 1}.items() | list | string", "[('a', 1)]"),
        ("[1, 2, 3][-1] + [1, 2, 3][1:][0] * 2", "7"),
        ("'abc'[::-1] + 'abc'[:-1] + 'abc'[1:2]", "cbaabb"),
        ("'x' in 'xyz' and 'q' not in ['x'] and 1 < 2 <= 2", "True"),
        ("[1, 2] | sum", "3"),
        ("'ab' | replace('a', 'c')", "cb"),
        ("'a-b'.replace('-', '+')", "a+b"),
        ("' x '.strip().center(5)", "  x  "),
        ("','.join(['a', 'b'])", "a,b"),
        ("7 // 2 ** 1 % 3 - 1", "-1"),
        ("'ab' | replace(old='a', new='c')", "cb"),
        ("6 is divisibleby(num=3) and 'x' is in(['x']) and 3 is not none", "True"),
        ("(1 if false)", ""),
    ],
)
def test_expressions(expression: str, expected: str) -> None:
    assert render("{{ " + expression + " }}") == expected


def test_loops_know_where_they_are() -> None:
    shown = "{{ loop.index }}/{{ loop.length }}{{ loop.first }}{{ loop.last }}{{ loop.previtem }}{{ loop.nextitem }};"
    source = "{% for x in xs %}" + shown + "{% endfor %}"
    assert render(source, xs=["a", "b"]) == "1/2TrueFalseb;2/2FalseTruea;"
    assert render(source, xs=iter(["a", "b"])) == "1/2TrueFalseb;2/2FalseTruea;"
    assert render("{% for x in [] %}{% else %}none{% endfor %}") == "none"
    assert render("{% for k, v in {'a': 1}.items() if v %}{{ k }}{{ v }}{% endfor %}") == "a1"
    assert render("{% for x in [[1, [2]]] recursive %}{{ x if x is number else loop(x) }}{% endfor %}") == "12"


def test_scopes() -> None:
    assert render("{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}") == "3"
    assert (
        render("{% macro f(a, b=2) %}{{ a }}{{ b }}{{ caller() if caller }}{% endmacro %}{{ f(1) }}{% call f(3) %}x{% endcall %}")
        == "1232x"
    )
    assert (
        render("{% macro f(context, function, self, value) %}{{ context }}{{ value }}{% endmacro %}{{ f(context=1, value=2) }}")
        == "12"
    )
    assert render("{% set x %}a{{ 1 }}{% endset %}{{ x | upper }}{% filter upper %}b{% endfilter %}") == "A1B"


def test_todays_date() -> None:
    from datetime import datetime

    assert render("{{ strftime_now('%Y') }}") == f"{datetime.now().astimezone():%Y}"


def test_the_templates_own_refusal() -> None:
    template = ChatTemplate("{% if messages %}\n{{ raise_exception('Roles must\nalternate') }}{% endif %}", where="m.gguf: 'k'")
    with pytest.raises(
        TemplateError, match=r"^m\.gguf: 'k', line 2: the template refuses the conversation: Roles must alternate$"
    ):
        template.render([USER])


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("a\n{% if %}", "t, line 2: Expected an expression, got 'end of statement block'"),
        (
            "a\n{% for x in y %}",
            (
                "t, line 2: Unexpected end of template. Jinja was looking for the following tags: 'endfor' or 'else'."
                " The innermost block that needs to be closed is 'for'."
            ),
        ),
        ("{{ x | nosuch }}", "t, line 1: No filter named 'nosuch'."),
    ],
)
def test_malformed(source: str, sentence: str) -> None:
    with pytest.raises(TemplateError) as caught:
        ChatTemplate(source, where="t")
    assert str(caught.value) == sentence


def test_an_undefined_name_is_empty_but_has_no_attributes() -> None:
    assert render("{{ nothing }}{{ nothing is defined }}{{ messages.at is defined }}") == "FalseFalse"
    with pytest.raises(TemplateError, match="'nothing' is undefined"):
        render("{{ nothing.at.all }}")


def test_failing_names_the_line() -> None:
    with pytest.raises(TemplateError) as caught:
        ChatTemplate("\n\n{{ messages[0].content + 1 }}", where="t").render([USER])
    assert str(caught.value) == 't, line 3: the template fails: can only concatenate str (not "int") to str'


def test_renders_in_many_threads_at_once() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
    results: dict[int, str] = {}

    def work(number: int) -> None:
        results[number] = template.render([{"role": "user", "content": str(number)}] * 500)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: str(number) * 500 for number in range(8)}


def test_loads_from_a_file() -> None:
    tokens = ["<unk>", "<s>", "</s>", "x"]
    made = file(
        tokenizer__chat_template="{{ bos_token }}|{{ eos_token }}",
        tokenizer__chat_template__tool_use="tools",
        tokenizer__ggml__tokens=tokens,
        tokenizer__ggml__bos_token_id=3,
        tokenizer__ggml__model="llama",
    )
    template = load_template(made)
    assert template is not None
    assert template.render([]) == "x|</s>"
    variant = load_template(made, "tool_use")
    assert variant is not None
    assert variant.source == "tools"
    assert load_template(made, "rag") is None
    assert load_template(file()) is None


def test_a_byte_level_vocabulary_has_only_the_tokens_it_names() -> None:
    template = load_template(
        file(tokenizer__chat_template="{{ bos_token }}|", tokenizer__ggml__tokens=["a", "b"], tokenizer__ggml__model="gpt2")
    )
    assert template is not None
    assert template.render([]) == "|"


def test_a_template_that_is_no_text() -> None:
    with pytest.raises(ModelError, match=r"^m\.gguf: 'tokenizer\.chat_template' is 3; expected a Jinja template\.$"):
        load_template(file(tokenizer__chat_template=3))
