"""`holdfast completion SHELL`: a script that lets the shell complete commands, verbs, options and their values.

The script holds all words, so that no program is started while a person types. Where no word of ours fits, the shell
completes files.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from shlex import quote
from typing import NamedTuple

from holdfast.cli.command import COMMANDS, Commands, new_command

BASH = """\
_holdfast() {
  local at= found= i
  for ((i = 1; i < COMP_CWORD && i < 3; i++)); do
    [[ ${COMP_WORDS[i]} == -* ]] && break
    at+="${at:+ }${COMP_WORDS[i]}"
  done
  _holdfast_words "$at" "${COMP_WORDS[COMP_CWORD - 1]}"
  COMPREPLY=($(compgen -W "$found" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _holdfast holdfast
"""
ZSH = """\
_holdfast() {
  local at= found= i
  for ((i = 2; i < CURRENT && i < 4; i++)); do
    [[ ${words[i]} == -* ]] && break
    at+="${at:+ }${words[i]}"
  done
  _holdfast_words "$at" "${words[CURRENT - 1]}"
  compadd -- ${=found} || _files
}
compdef _holdfast holdfast
"""
FISH = """\
function __holdfast_at
  set -l at
  for word in (commandline -opc)[2..3]
    string match -q -- '-*' $word; and break
    set -a at $word
  end
  test "$at" = "$argv"
end
"""


def add_parser(commands: Commands) -> None:
    parser = new_command(commands, "completion", run).help("""
        Print a script for your shell: with it, the tab key completes commands, verbs, options and their values.
        examples:
          eval "$(holdfast completion bash)"
          eval "$(holdfast completion zsh)"
          holdfast completion fish > ~/.config/fish/completions/holdfast.fish
        """)
    parser.add_argument("shell", metavar="SHELL", choices=("bash", "zsh", "fish"), help="bash, zsh or fish")


def run(args: argparse.Namespace) -> int:
    print(f'# Completion of holdfast for {args.shell}: eval "$(holdfast completion {args.shell})"')
    if args.shell == "fish":
        print(FISH + "\n".join(_fish_lines()))
    else:
        print("\n".join(_case_lines()) + "\n" + (BASH if args.shell == "bash" else ZSH), end="")
    return 0


class Known(NamedTuple):
    """What may follow at one command or verb."""

    at: str  # "", "task" or "task list"
    words: tuple[str, ...]  # verbs, or what its argument may be
    options: tuple[argparse.Action, ...]


def everything() -> Iterator[Known]:
    from holdfast.cli.main import build_parser

    yield Known("", tuple(COMMANDS), build_parser([]).options)
    for name in COMMANDS:
        parser = build_parser([name]).parts[name]
        yield Known(name, parser.words, parser.options)
        for verb, inner in parser.parts.items():
            yield Known(f"{name} {verb}", (), inner.options)


def _case_lines() -> Iterator[str]:
    """A function for bash and zsh that sets `found` for a command and the word before the cursor."""
    known = list(everything())
    yield "_holdfast_words() {"
    yield '  case "$1:$2" in'
    for one in known:
        for option in one.options:
            if option.nargs != 0:
                names = "|".join(quote(f"{one.at}:{name}") for name in option.option_strings)
                yield f"    {names}) found={quote(' '.join(map(str, option.choices or ())))}; return ;;"
    yield "  esac"
    yield '  case "$1" in'
    for one in known:
        words = (*one.words, *(name for option in one.options for name in option.option_strings))
        yield f"    {quote(one.at)}) found={quote(' '.join(words))} ;;"
    yield "  esac"
    yield "}"


def _fish_lines() -> Iterator[str]:
    for one in everything():
        here = f"complete -c holdfast -n {_fish_quote(f'__holdfast_at {one.at}'.strip())}"
        for word in one.words:
            about = COMMANDS[word].summary if not one.at else ""
            yield f"{here} -f -a {word} -d {_fish_quote(about)}"
        for option in one.options:
            names = (f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.option_strings)
            value = "" if option.nargs == 0 else " -r"
            if option.choices:
                value = f" -x -a {_fish_quote(' '.join(map(str, option.choices)))}"
            yield f"{here} {' '.join(names)}{value} -d {_fish_quote(str(option.help))}"


def _fish_quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
