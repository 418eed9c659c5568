"""Runs chat templates, which come from model files and are not trusted.

Jinja's immutable sandbox keeps a template from reaching Python's inside; what it does not bound is time and memory. Here
every step that can repeat (loop items, calls, filters, tests, comparisons that look into values) is counted, and every
operation that can make something large (joining, multiplying, padding, formatting, slicing, writing out nested lists) is
checked before it is done. A template cannot replace these checks: they are not looked up by name.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from string import Formatter
from typing import Any, Final

from jinja2 import Environment, nodes, pass_context, pass_environment
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS
from jinja2.utils import _PassArg
from jinja2.visitor import NodeTransformer

from tensorsharp.text.limits import ITEM, MAX_BITS, LimitError, Limits

MAX_SOURCE: Final = 1 << 16
MAX_ARGUMENT: Final = 10_000
MAX_INDENT: Final = 64
# Left out: what makes random text, HTML for browsers or listings for debugging, none of which belongs into a prompt.
_LEFT_OUT: Final = {
    "filesizeformat",
    "forceescape",
    "pprint",
    "random",
    "striptags",
    "urlencode",
    "urlize",
    "wordwrap",
    "xmlattr",
}
# Bytes have no place in a prompt, and str.translate can put a long text for every character.
_REFUSED_METHODS: Final = frozenset(("encode", "from_bytes", "maketrans", "to_bytes", "translate"))
_PADDING: Final = frozenset(("center", "ljust", "rjust", "zfill"))
_SPLITTING: Final = frozenset(("split", "rsplit", "splitlines"))
_NUMBER: Final = re.compile(r"\d+")
_WIDTH_IN_ARGUMENT: Final = re.compile(r"%(\([^)]*\))?[-#0 +\d.]*\*")


class Generation(Extension):
    """`{% generation %}` marks the assistant's own words for training; for a prompt it is nothing."""

    tags = {"generation"}  # noqa: RUF012  (Jinja declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Checks(NodeTransformer):
    """Puts the checks into a parsed template."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _check("watched", node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _check("joined", *node.nodes)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        looks_inside = any(op.op in ("in", "notin") for op in node.ops)
        constant = isinstance(node.expr, nodes.Const) or any(isinstance(op.expr, nodes.Const) for op in node.ops)
        return _check("compared", node) if looks_inside or not constant else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _check("made", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return _check("made", node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return _check("made", node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _check("made", node) if node.ctx == "load" else node

    def visit_Const(self, node: nodes.Const) -> nodes.Node:
        if isinstance(node.value, int) and node.value.bit_length() > MAX_BITS:
            raise LimitError("it holds too large a number")
        return node


def _check(name: str, *arguments: nodes.Node) -> nodes.Call:
    call = nodes.Call(nodes.EnvironmentAttribute(name), list(arguments), [], None, None)
    call.set_lineno(arguments[0].lineno)
    return call


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment that templates are compiled in; a copy of it with its own `limits` renders each one."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "**", "%"))
    limits: Limits

    def __init__(self) -> None:
        # Without the optimizer nothing of a template is executed while it is compiled.
        super().__init__(trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[loopcontrols, Generation])
        self.finalize = _writable
        self.filters = {name: _guarded(name, f) for name, f in dict[str, Any](FILTERS).items() if name not in _LEFT_OUT}
        self.filters |= {name: _guarded(name, f) for name, f in _OWN_FILTERS.items()}
        self.tests = {name: _ticking(f) for name, f in dict[str, Any](TESTS).items()}
        del self.globals["lipsum"]

    def limited(self, limits: Limits) -> Sandbox:
        """A copy that renders within `limits`."""
        copy = self.overlay()
        copy.limits = limits
        setattr(copy, "concat", copy.concatenated)  # noqa: B010  (declared as a method, read as an attribute)
        return copy

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        if len(source) > MAX_SOURCE:
            raise LimitError(f"it has {len(source)} characters, more than {MAX_SOURCE}")
        tree = super()._parse(source, name, filename)
        _Checks().visit(tree)
        tree.set_environment(self)
        return tree

    # What _Checks calls ------------------------------------------------------------------------------------------

    def watched(self, values: Any) -> Iterable[Any]:
        return self.limits.watched(values)

    def joined(self, *values: Any) -> str:
        for value in values:
            self.limits.writable(value)
        return "".join(map(str, values))

    def compared(self, value: Any) -> Any:
        return value

    def made(self, value: Any) -> Any:
        return self.limits.made(value)

    def concatenated(self, pieces: Iterable[str]) -> str:
        parts = list(pieces)
        self.limits.charge(sum(map(len, parts)))
        return "".join(parts)

    # What Jinja's sandbox calls ----------------------------------------------------------------------------------

    def call(self, context: Context, function: Any, /, *arguments: Any, **keywords: Any) -> Any:
        self.limits.tick()
        owner = getattr(function, "__self__", None)
        if owner is self:
            return function(*arguments)
        if isinstance(function, LoopContext):
            arguments = (self.limits.watched(arguments[0]), *arguments[1:])
        elif isinstance(owner, (str, int)):
            arguments = self._check_method(owner, function.__name__, arguments, keywords)
        return self.limits.made(super().call(context, function, *arguments, **keywords))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self.limits.tick()
        if operator == "*":
            for many, value in ((left, right), (right, left)):
                if isinstance(many, int) and isinstance(value, Sequence):
                    self.limits.charge(max(many, 0) * max(len(value), 1))
        elif operator == "**":
            if all(isinstance(value, int) for value in (left, right)) and left.bit_length() * right > MAX_BITS:
                raise LimitError("it makes too large a number")
        elif operator == "%" and isinstance(left, str):
            self.check_percent(left, right)
        return self.limits.made(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        template = value.__self__
        inner = wrapped

        def checked(*arguments: Any, **keywords: Any) -> str:
            self.check_format(template, (*arguments, *keywords.values()))
            return inner(*arguments, **keywords)

        return checked

    def _check_method(self, owner: Any, name: str, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> tuple[Any, ...]:
        """Refuse or charge for a method of a text or number; gives the arguments to call it with."""
        if name in _REFUSED_METHODS:
            raise LimitError(f"it uses {type(owner).__name__}.{name}, which templates may not")
        given = (*arguments, *keywords.values())
        if name in _PADDING or name == "expandtabs":
            times = max(owner.count("\t"), 1) if name == "expandtabs" else 1
            self.limits.charge(times * max((value for value in given if isinstance(value, int)), default=8))
        elif name in _SPLITTING:
            separators = [value for value in given if isinstance(value, str) and value]
            self.limits.charge(ITEM * (owner.count(separators[0]) if separators else len(owner) // 2))
        elif name == "replace":
            self.check_replace(owner, *arguments[:2])
        elif name == "join" and len(arguments) == 1:
            values = list(arguments[0])
            self.check_join(values, owner)
            return (values,)
        return arguments

    def check_percent(self, template: str, values: Any) -> None:
        """Before `template % values`: at most each place holds the largest width in it or the largest value."""
        if _WIDTH_IN_ARGUMENT.search(template):
            raise LimitError("it formats with a width from an argument")
        flat = values if isinstance(values, tuple) else values.values() if isinstance(values, Mapping) else (values,)
        widths = map(_number, _NUMBER.findall(template))
        self._charge_format(template, template.count("%"), widths, flat)

    def check_format(self, template: str, values: Iterable[Any]) -> None:
        """The same before `template.format(values)`."""
        fields = [(field, spec or "") for _, field, spec, _ in Formatter().parse(template) if field is not None]
        if any("{" in spec for _, spec in fields):
            raise LimitError("it formats with a width from an argument")
        widths = [_number(digits) for _, spec in fields for digits in _NUMBER.findall(spec)]
        self._charge_format(template, len(fields), widths, values)

    def _charge_format(self, template: str, places: int, widths: Iterable[int], values: Iterable[Any]) -> None:
        largest = max(map(self.limits.weigh, values), default=0)
        self.limits.charge(len(template) + places * max(largest, max(widths, default=0)))

    def check_replace(self, text: Any, old: Any = None, new: Any = None) -> None:
        if all(isinstance(value, str) for value in (text, old, new)):
            self.limits.charge(len(text) + text.count(old) * len(new))

    def check_join(self, values: list[Any], separator: Any) -> None:
        self.limits.charge(sum(map(self.limits.weigh, values)) + len(values) * self.limits.weigh(separator))


def _number(digits: str) -> int:
    """The number, or something beyond every limit if it is absurdly long."""
    return int(digits) if len(digits) < 12 else 1 << 40


@pass_context
def _writable(context: Context, value: Any) -> Any:
    """Before a value is written into the text. It asks for the context, so Jinja writes nothing while compiling."""
    if not isinstance(value, str):
        environment = context.environment
        if isinstance(environment, Sandbox):
            environment.limits.writable(value)
    return value


def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that counts, checks what it is given where that decides what it makes, and counts what it made."""
    wants = _PassArg.from_obj(function)
    check = _FILTER_CHECKS.get(name)

    @pass_context
    def guarded(context: Context, value: Any, /, *arguments: Any, **keywords: Any) -> Any:
        environment = context.environment
        if not isinstance(environment, Sandbox):
            raise LimitError("it is rendered outside its sandbox")
        environment.limits.tick()
        for argument in (*arguments, *keywords.values()):
            if isinstance(argument, int) and abs(argument) > MAX_ARGUMENT:
                raise LimitError(f"it gives {name} the number {argument}, more than {MAX_ARGUMENT}")
        if check is not None:
            value = check(environment, value, *arguments, **keywords)
        first = {
            _PassArg.context: (context,),
            _PassArg.eval_context: (context.eval_ctx,),
            _PassArg.environment: (environment,),
            None: (),
        }[wants]
        return environment.limits.made(function(*first, value, *arguments, **keywords))

    return guarded


def _ticking(function: Callable[..., Any]) -> Callable[..., Any]:
    wants_environment = _PassArg.from_obj(function) is _PassArg.environment

    @pass_environment
    def ticking(environment: Environment, /, *arguments: Any, **keywords: Any) -> Any:
        if isinstance(environment, Sandbox):
            environment.limits.tick()
        first = (environment,) if wants_environment else ()
        return function(*first, *arguments, **keywords)

    return ticking


def _check_written(environment: Sandbox, value: Any, *_: Any, **__: Any) -> Any:
    environment.limits.writable(value)
    return value


def _check_joined(environment: Sandbox, value: Any, d: Any = "", attribute: Any = None) -> Any:
    values = list(value)
    environment.check_join(values, d)
    return values


def _check_replaced(environment: Sandbox, value: Any, old: Any, new: Any, count: Any = None) -> Any:
    environment.check_replace(value, old, new)
    return value


def _check_indented(environment: Sandbox, value: Any, width: Any = 4, first: bool = False, blank: bool = False) -> Any:
    environment.limits.charge((value.count("\n") + 1) * (len(width) if isinstance(width, str) else width) + len(value))
    return value


def _check_formatted(environment: Sandbox, value: Any, *arguments: Any, **keywords: Any) -> Any:
    environment.check_percent(str(value), keywords or arguments)
    return value


def _check_summed(environment: Sandbox, value: Any, attribute: Any = None, start: Any = 0) -> Any:
    if not isinstance(start, (int, float)):
        raise LimitError("it sums up something else than numbers")
    return value


_FILTER_CHECKS: Final[Mapping[str, Callable[..., Any]]] = {
    "e": _check_written,
    "escape": _check_written,
    "safe": _check_written,
    "string": _check_written,
    "tojson": _check_written,
    "trim": _check_written,
    "upper": _check_written,
    "lower": _check_written,
    "title": _check_written,
    "capitalize": _check_written,
    "center": _check_written,
    "join": _check_joined,
    "replace": _check_replaced,
    "indent": _check_indented,
    "format": _check_formatted,
    "sum": _check_summed,
}


@pass_environment
def _to_json(
    environment: Sandbox,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers has it for chat templates: not escaped for HTML, keys in their order."""
    if indent is not None and not 0 <= operator.index(indent) <= MAX_INDENT:
        raise LimitError(f"it indents JSON by {indent}, more than {MAX_INDENT}")
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    pieces = []
    for piece in encoder.iterencode(value):
        environment.limits.tick()
        environment.limits.charge(len(piece))
        pieces.append(piece)
    return "".join(pieces)


_OWN_FILTERS: Final[Mapping[str, Callable[..., Any]]] = {"tojson": _to_json}
