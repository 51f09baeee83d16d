"""A person at the keyboard, as far as a transport can tell: answers prompts and remembers what was
asked. For tests.
"""

from __future__ import annotations

from collections.abc import Mapping

from hpcdash.transport.base import HostKeyQuestion, Prompt


class Person:
    """`answers` maps a part of a field's label to what is typed; `accepts` is the answer to unknown
    host keys.

    `shown` is what hosts said without asking, `waited` which were silent for long. A person who is
    not here is asked nothing.
    """

    def __init__(
        self,
        answers: Mapping[str, str] | None = None,
        *,
        accepts: bool = False,
        is_here: bool = True,
    ) -> None:
        self.answers = dict(answers or {})
        self.accepts = accepts
        self.is_here = is_here
        self.prompts: list[Prompt] = []
        self.questions: list[HostKeyQuestion] = []
        self.shown: list[tuple[str, str]] = []
        self.waited: list[str] = []

    def can_prompt(self) -> bool:
        return self.is_here

    def show(self, hop: str, words: str) -> None:
        self.shown.append((hop, words))

    def waiting(self, hop: str) -> None:
        self.waited.append(hop)

    async def answer(self, prompt: Prompt) -> list[str] | None:
        self.prompts.append(prompt)
        typed = []
        for field in prompt.fields:
            matching = [text for part, text in self.answers.items() if part in field.label]
            if not matching:
                return None
            typed.append(matching[0])
        return typed

    async def accept_host_key(self, question: HostKeyQuestion) -> bool:
        self.questions.append(question)
        return self.accepts
