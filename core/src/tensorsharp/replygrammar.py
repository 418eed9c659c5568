"""What the reply of a conversation has to be: calls of tools, a form behind the reasoning, a limit on the reasoning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from tensorsharp.dialect import ChatPrompt
from tensorsharp.errors import RequestError, UnsupportedError
from tensorsharp.protocols.constraint import Grammar
from tensorsharp.text.toolcalls import Tool, Tools
from tensorsharp.types import Constraint

if TYPE_CHECKING:
    from tensorsharp.llm import LLM


def reply_grammar(
    llm: LLM,
    prompt: ChatPrompt,
    tools: Tools,
    *,
    required: bool,
    several: bool,
    constraint: Constraint | None,
    budget: int | None,
) -> Grammar | None:
    """The grammar of the reply to a prompt, if it is bound to anything.

    tools: those that may be called, one of which has to be (`required`). several: whether more than one call may be made.
    constraint: what the content has to be; with tools it is that, or calls. budget: tokens of reasoning. RequestError names what
    cannot be kept.
    """
    form, grammar = constraint, None
    if form is not None:
        if tools and form.after:
            raise RequestError(
                "The form of a reply that may call tools begins behind a text of its own; expected one without 'after'.",
                param="constraint",
                code="invalid_value",
            )
        form = form if form.after else _behind(form, prompt, answer=True)
        grammar = llm.grammar(form)
    if required or any(tool.strict for tool in tools) or (tools and form is not None):
        grammar = _calls(llm, prompt, tools, required=required, several=several, form=None if required else form)
    return grammar if budget is None else _limited(llm, prompt, budget, grammar)


def _calls(llm: LLM, prompt: ChatPrompt, tools: Tools, *, required: bool, several: bool, form: Constraint | None) -> Grammar:
    """The grammar of calls, and where none is required of other text, which has a form or is free."""
    from tensorsharp.text.callgrammar import ANY_OBJECT, GrammarWriter

    write = prompt.format.calls
    if write is None:
        _refuse_calls(required=required, formed=form is not None)
    controls = {text: token for token, text in llm.dialect.shown(prompt.format).items()}
    # beside free text calls of tools that are not strict are free, too: a form binds no more than how they are written
    written = [tool if tool.strict or form is None else replace(tool, parameters=ANY_OBJECT) for tool in tools]

    def compiled(*, loose: bool) -> Grammar:
        writer = GrammarWriter(controls, loose=loose)
        source = writer.grammar(write(writer, written, several, not required, form))
        return llm.grammar(_behind(Constraint("lark", source), prompt, answer=False))

    try:
        return compiled(loose=False)
    except UnsupportedError:
        raise
    except RequestError as error:
        _refuse_strict(llm, [*tools], error)
    return compiled(loose=True)


def _refuse_calls(*, required: bool, formed: bool) -> NoReturn:
    what, param, hint = "Strict tools cannot be kept by", "tools", None
    if required:
        what, param = "A call cannot be required of", "tool_choice"
    elif formed:
        what, param = "A form cannot be kept beside tools to call by", "constraint"
        hint = "Leave the form or the tools out, or set tool_choice to none."
    raise UnsupportedError(f"{what} this model, whose way to write calls has no grammar.", param=param, hint=hint)


def _refuse_strict(llm: LLM, tools: Sequence[Tool], error: RequestError) -> None:
    """RequestError for the strict tool whose schema cannot be followed."""
    strict = [(i, tool) for i, tool in enumerate(tools) if tool.strict]
    for i, tool in strict:
        try:
            llm.grammar(Constraint.json_schema(tool.parameters))
        except RequestError as found:
            raise _of_tool(i, found) from None
    if strict:
        raise _of_tool(strict[0][0], error) from None


def _of_tool(index: int, error: RequestError) -> RequestError:
    field = f"tools[{index}].function.parameters"
    return RequestError(f"{field}: {error}", param=field, code=error.code, hint=error.hint)


def _behind(constraint: Constraint, prompt: ChatPrompt, *, answer: bool) -> Constraint:
    """A constraint that begins where the reasoning ends, or (`answer`) where the content begins."""
    if answer and prompt.format.answer:
        return replace(constraint, after=prompt.format.answer)
    reasoning = prompt.format.reasoning
    if reasoning is None or prompt.closed:
        return constraint
    return replace(constraint, after=reasoning.close, opening="" if prompt.opened else reasoning.open)


def _limited(llm: LLM, prompt: ChatPrompt, budget: Any, grammar: Grammar | None) -> Grammar | None:
    from tensorsharp.text.budget import ReasoningBudget

    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 0:
        raise RequestError(
            f"reasoning_budget is {budget!r:.100}; expected a number of tokens, 0 or more.",
            param="reasoning_budget",
            code="invalid_value",
        )
    reasoning = prompt.format.reasoning
    if reasoning is None:
        raise UnsupportedError("This model does not reason.", param="reasoning_budget", hint="Leave the budget out.")
    if prompt.closed:
        return grammar
    tokenizer = llm.tokenizer

    def text_of(token: int) -> bytes:
        return tokenizer.bytes_of(token) or tokenizer.piece(token).encode()

    # behind a closed channel the model might reason again, so the channel of the answer is opened too
    rest = "" if grammar is not None else prompt.format.answer
    closing = tokenizer.encode(f"{reasoning.close}{rest}" if prompt.format.answer else f"\n{reasoning.close}", bos=False)
    opening = "" if prompt.opened else reasoning.open
    return ReasoningBudget(budget, opening, reasoning.close, closing, text_of, tokenizer.vocab_size, grammar)
