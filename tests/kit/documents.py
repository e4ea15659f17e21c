"""The documents as tests read them: pages, blocks of code with their marks, commands of a shell, sentences, links."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
README = CHECKOUT / "README.md"
DOCS = CHECKOUT / "docs"
SKILL = CHECKOUT / ".agents" / "skills" / "judge-kernels" / "SKILL.md"
PAGES = [README, CHECKOUT / "AGENTS.md", SKILL, *sorted(DOCS.rglob("*.md"))]
SHELLS = ("sh", "bash", "shell")
PROGRAM = "flashinfer-bench"
SEPARATORS = ("&&", "||", "|", ";", "(", ")")
_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[\w-]*)[^\n]*\n(?P<text>.*?)^(?P=indent)```\s*$", re.DOTALL | re.MULTILINE
)
_MARK = re.compile(r"<!-- (not run|exits with): ?([^\n]*?) *-->\n+\Z")
_FILE = re.compile(r"^`([^`\n]+)`:\n\n\Z", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block of code of a page."""

    page: Path
    line: int
    """Where it begins in the page, counted from 1."""
    language: str
    """The word behind the fence; "sh" for an indented command; "" where there is none."""
    text: str
    file: str
    """The file that the reader is to write it to: the line above is the file's name. Else ""."""
    mark: str
    """What the comment above says: "not run", "exits with", or ""."""
    reason: str
    """The rest of that comment."""

    def __str__(self) -> str:
        """Name the block in the name of a test."""
        return f"{self.page.relative_to(CHECKOUT)}:{self.line}"


def read_blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, and each indented command, in their order."""
    text = page.read_text()
    blocks = []
    for found in _FENCE.finditer(text):
        before = text[: found.start()]
        mark, file = _MARK.search(before), _FILE.search(before)
        body = re.sub(rf"^{found['indent']}", "", found["text"], flags=re.MULTILINE)
        said = (mark[1], mark[2]) if mark else ("", "")
        line = before.count("\n") + 1
        blocks.append(Block(page, line, found["language"], body, file[1] if file else "", *said))
    outside = _FENCE.sub(lambda found: "\n" * found[0].count("\n"), text)
    for number, line in enumerate(outside.splitlines(), 1):
        if re.match(rf" {{4,}}{PROGRAM} ", line):
            blocks.append(Block(page, number, "sh", line.strip() + "\n", "", "", ""))
    return sorted(blocks, key=lambda block: block.line)


def read_commands(text: str) -> list[list[str]]:
    """Return the commands of a block for a shell, as words. What leads elsewhere (> FILE) is left out."""
    commands = []
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(re.sub(r"<(\w+)>", r"\1", line), posix=True, punctuation_chars=True)
        lexer.wordchars += "$%@:,+{}…!^"
        command: list[str] = []
        words = iter(lexer)
        for word in words:
            if word in SEPARATORS:
                commands.append(command)
                command = []
            elif set(word) <= {">", "<", "&"}:
                next(words, None)
            elif command or not re.fullmatch(r"[A-Z_]+=.*", word):
                command.append(word)
        commands.append(command)
    return [command for command in commands if command]


def read_sentences(text: str) -> list[str]:
    """Return the sentences of a page's paragraphs and lists. Headings, tables, code and comments are no sentences."""
    text = _FENCE.sub("\n\n", re.sub(r"\A---\n.*?^---\n", "", text, flags=re.DOTALL | re.MULTILINE))
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"^(#.*|\|.*|!\[.*| {4,}.*)$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"^\s*(?:[*-]|\d+\.) ", "\n\n", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`\n]*`", "code", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    sentences = []
    for paragraph in re.split(r"\n\s*\n", text):
        flat = " ".join(paragraph.replace("*", "").split())
        sentences += [part for part in re.split(r"(?<=[.!?])\s+", flat) if re.search(r"\w", part)]
    return sentences


def read_links(text: str) -> list[str]:
    """Return the targets of a page's links and pictures that lead to no other host."""
    text = re.sub(r"`[^`\n]*`", "", _FENCE.sub("", text))
    found = re.findall(r"\]\(([^)\s]+)\)", text)
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def list_anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as a code host and the site make them."""
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in headings}
