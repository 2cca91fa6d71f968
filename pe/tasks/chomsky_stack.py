"""Tasks of the Chomsky hierarchy that need a stack (deterministic context-free languages).

    stack_manipulation            bits, then POP (2), PUSH 0 (3), PUSH 1 (4)  ->  the stack, its top
                                  first, 2, zeros up to length n + 1
    reverse_string                x_1 .. x_n  ->  x_n .. x_1
    modular_arithmetic_brackets   an expression with brackets and + - *  ->  its value modulo 5
    solve_equation                the same with + and -, one digit being x, = and its value  ->  x

See `core.chomsky`. POP on an empty stack does nothing. Expressions of length 1 to 4 are d, -d, (d)
and (-d); longer ones are (left op right), and the length of left is uniform. In an equation the
first digit at or after a uniform place is replaced by x.
"""

from __future__ import annotations

import numpy as np

from pe.tasks.core.chomsky import PAPER, SOURCE, Bits, Chomsky, OneSymbol, in_order
from pe.tasks.core.draws import Draws, Int
from pe.tasks.core.registry import register
from pe.tasks.core.scoring import Baseline

MODULUS = 5
END, POP, PUSH = 2, 2, 3


@register("stack_manipulation", title="Stack manipulation", paper=PAPER, source=SOURCE)
class StackManipulation(Chomsky):
    """Answer the content of a stack, from its top, after all its operations."""

    written, outputs = "01234", 3

    def question(self, draws: Draws, length: int) -> Int:
        bits = 1 if length == 1 else draws.integer(1, length)
        stack = draws.integers(0, 2, bits)
        return np.concatenate((stack, draws.integers(POP, PUSH + 2, length - bits)))

    def solution(self, question: Int) -> Int:
        stack: list[int] = []
        for token in question:
            if token == POP:
                stack = stack[:-1]
            else:
                stack.append(int(token) % PUSH)
        return np.array([*stack[::-1], END, *[0] * (len(question) - len(stack))])

    def asked(self, answer: Int) -> int:
        return int((answer == END).argmax()) + 1


@register("reverse_string", title="Reverse string", paper=PAPER, source=SOURCE)
class ReverseString(Bits):
    """Answer the bits in the opposite order."""

    def solution(self, question: Int) -> Int:
        return question[::-1].copy()

    def baselines(self) -> tuple[Baseline, ...]:
        return *super().baselines(), Baseline("in order", "The string as it is.", in_order)


def draw_expression(draws: Draws, length: int, operators: str) -> str:
    """Draw a random expression with brackets."""
    if length <= 4:
        digit = str(draws.integer(0, MODULUS))
        return (digit, f"-{digit}", f"({digit})", f"(-{digit})")[length - 1]
    left = draws.integer(1, length - 3)
    one = draw_expression(draws, left, operators)
    other = draw_expression(draws, length - left - 3, operators)
    return f"({one}{operators[draws.integer(0, len(operators))]}{other})"


def value_of(expression: str) -> int:
    """Return the value of an expression with brackets, modulo 5."""
    value, rest = _parse(expression)
    assert not rest, expression
    return value % MODULUS


def _parse(text: str) -> tuple[int, str]:
    """Return the value of the expression at the beginning of ``text``, and the rest of the text."""
    if text[0] == "-":
        return -int(text[1]), text[2:]
    if text[0] != "(":
        return int(text[0]), text[1:]
    value, rest = _parse(text[1:])
    if rest[0] != ")":
        other, after = _parse(rest[1:])
        operator = rest[0]
        value = {"+": value + other, "-": value - other, "*": value * other}[operator]
        rest = after
    return value % MODULUS, rest[1:]


@register(
    "modular_arithmetic_brackets",
    title="Modular arithmetic with brackets",
    paper=PAPER,
    source=SOURCE,
)
class ModularArithmeticBrackets(OneSymbol):
    """Answer the value of an expression with brackets, modulo 5."""

    written, outputs = "01234+-*()x", MODULUS

    def question(self, draws: Draws, length: int) -> Int:
        expression = draw_expression(draws, length, "+-*")
        return np.array([self.written.index(symbol) for symbol in expression])

    def solution(self, question: Int) -> Int:
        return np.array([value_of("".join(self.written[token] for token in question))])


@register("solve_equation", title="Solve equation", paper=PAPER, source=SOURCE)
class SolveEquation(OneSymbol):
    """Answer the digit x that makes an equation modulo 5 true.

    Questions of length 1 and 2 are zeros, and so is their answer.
    """

    written, outputs = "01234+-()x=", MODULUS

    def question(self, draws: Draws, length: int) -> Int:
        if length < 3:
            return np.zeros(length, dtype=np.int64)
        expression = draw_expression(draws, length - 2, "+-")
        start = draws.integer(0, length - 2)
        turned = expression[start:] + expression[:start]
        first = next(i for i, symbol in enumerate(turned) if symbol.isdigit())
        place = (start + first) % (length - 2)
        equation = f"{expression[:place]}x{expression[place + 1 :]}={value_of(expression)}"
        return np.array([self.written.index(symbol) for symbol in equation])

    def solution(self, question: Int) -> Int:
        if len(question) < 3:
            return np.zeros(1, dtype=np.int64)
        text = "".join(self.written[token] for token in question)
        expression, _, value = text.partition("=")
        (x,) = (
            x for x in range(MODULUS) if value_of(expression.replace("x", str(x))) == int(value)
        )
        return np.array([x])

    def baselines(self) -> tuple[Baseline, ...]:
        def value(tokens: Int, places: Int) -> Int:
            return tokens[places - 1]

        return *super().baselines(), Baseline("value", "x is the value of the expression.", value)
