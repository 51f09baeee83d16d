"""Which parts of a script's lines are comments, strings, keywords and the like."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Start and end in letters, and a name of PARTS.
Part = tuple[int, int, str]
PARTS = ("comment", "string", "keyword", "number", "variable")
# Reading more takes seconds.
MOST_LETTERS = 200_000
_SHEBANG = re.compile(r"#!\s*(?:\S*/)?(\S+)(?:\s+(?:-\S+\s+)*(\S+))?")
_LANGUAGES = {
    "sh": "bash",
    "dash": "bash",
    "ksh": "bash",
    "bash": "bash",
    "zsh": "zsh",
    "csh": "tcsh",
    "tcsh": "tcsh",
    "fish": "fish",
    "python": "python",
    "perl": "perl",
    "ruby": "ruby",
    "rscript": "r",
    "julia": "julia",
    "lua": "lua",
    "node": "javascript",
    "tclsh": "tcl",
    "awk": "awk",
}
# How pygments calls its tokens.
_TOKENS = (
    ("Token.Comment", "comment"),
    ("Token.Literal.String.Interpol", "variable"),
    ("Token.Literal.String", "string"),
    ("Token.Literal.Number", "number"),
    ("Token.Keyword", "keyword"),
    ("Token.Name.Builtin", "keyword"),
    ("Token.Name.Variable", "variable"),
    ("Token.Operator.Word", "keyword"),
)


def language_of(first_line: str) -> str:
    """The language of a script, from its first line: `#!/usr/bin/env python3` is python, anything unknown bash."""
    found = _SHEBANG.match(first_line)
    if found is None:
        return "bash"
    program = (found[2] if found[1] == "env" and found[2] else found[1]).rpartition("/")[2]
    return _LANGUAGES.get(re.sub(r"[0-9.]+$", "", program).lower(), "bash")


def coloured_parts(lines: Sequence[str], language: str) -> list[list[Part]]:
    """The parts of each line; lines beyond MOST_LETTERS have none. Takes up to a second: not for the event loop."""
    kept: list[str] = []
    letters = 0
    for line in lines:
        letters += len(line) + 1
        if letters > MOST_LETTERS:
            break
        kept.append(line)
    parts: list[list[Part]] = [[] for _ in lines]
    # Pygments is not for the start of the program.
    from rich.syntax import Syntax

    lexer = Syntax("", language).lexer
    if lexer is None or not kept:
        return parts
    row = column = 0
    for token, text in lexer.get_tokens("\n".join(kept)):
        name = _name(str(token))
        for number, piece in enumerate(text.split("\n")):
            if number:
                row, column = row + 1, 0
            if name and piece and row < len(parts):
                parts[row].append((column, column + len(piece), name))
            column += len(piece)
    return parts


def _name(token: str) -> str:
    return next((name for start, name in _TOKENS if token.startswith(start)), "")
