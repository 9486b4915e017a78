"""Report of a first contact as JSON and as Markdown."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlflow_ngraph.errors import UsageError
from mlflow_ngraph.tables.sheet import Sheet, escaped, grid, number
from mlflow_ngraph_testing.first_contact.finding import Finding

JSON_NAME = "first-contact.json"
MARKDOWN_NAME = "first-contact.md"
FORMAT = 1


@dataclass
class Report:
    """The report, complete or not."""

    device: str
    form: str
    package: str
    """Version of this one."""
    planned: Sequence[tuple[str, str]]
    """Name and title of every part, in their order."""
    started_at: float = field(default_factory=time.time)
    """Unix seconds."""
    parts: dict[str, Finding] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """0: all that could be tried was right. 3: something was wrong, or did not come to its end."""
        done = [self.parts[name].status for name, _ in self.planned if name in self.parts]
        return 3 if any(status in ("wrong", "incomplete") for status in done) else 0

    def write(self, folder: Path) -> None:
        """Put both documents into a folder, in the place of older ones. A kill leaves the old or the new."""
        content = {
            "format": FORMAT,
            "device": self.device,
            "form": self.form,
            "package": self.package,
            "planned": [list(part) for part in self.planned],
            "started_at": self.started_at,
            "exit_code": self.exit_code,
            "parts": {name: finding.as_json() for name, finding in self.parts.items()},
        }
        _replace(folder / JSON_NAME, anonymous(json.dumps(content, indent=2, ensure_ascii=False) + "\n", folder))
        _replace(folder / MARKDOWN_NAME, anonymous("\n".join(self.lines()) + "\n", folder))

    def lines(self) -> Iterator[str]:
        """Lines of the page for people."""
        done = self.parts
        seconds = sum(finding.seconds for finding in done.values())
        yield f"# First contact with device `{self.device}`"
        yield ""
        when = time.strftime("%Y-%m-%d", time.gmtime(self.started_at))
        yield f"mlflow-ngraph {self.package}, {when}, {self.form} form, {seconds / 60:.1f} minutes. {self._verdict()}"
        yield ""
        rows = [
            (title, done[name].status, done[name].said, f"{done[name].seconds:.0f} s")
            if name in done
            else (title, "not begun", "", "")
            for name, title in self.planned
        ]
        yield from grid(Sheet("", ("part", "result", "what was seen", number("time")), rows))
        for name, _ in self.planned:
            for table in done[name].tables if name in done else ():
                yield from ("", f"## {escaped(table.title)}", "")
                yield from grid(table)

    def _verdict(self) -> str:
        if self.parts and all(finding.status == "lacking" for finding in self.parts.values()):
            return "Nothing could be tried: this machine lacks what the device needs."
        titles = {
            status: [title for name, title in self.planned if name in self.parts and self.parts[name].status == status]
            for status in ("wrong", "incomplete", "lacking")
        }
        words = {
            "wrong": "Something is wrong in",
            "incomplete": "Did not come to its end:",
            "lacking": "Could not be tried here:",
        }
        sentences = [f"{words[status]} {', '.join(parts)}." for status, parts in titles.items() if parts]
        return " ".join(sentences) or "All that was tried is right."


def read(folder: Path) -> Report:
    """The report that lies in a folder.

    Raises
    ------
    UsageError
        There is none, or it is of another format.
    """
    path = folder / JSON_NAME
    try:
        content: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise UsageError(f"there is no report in {folder}") from None
    except ValueError as error:
        raise UsageError(f"{path} is damaged: {error}") from None
    if content.get("format") != FORMAT:
        raise UsageError(f"{path} has format {content.get('format')}, expected {FORMAT}")
    return Report(
        device=content["device"],
        form=content["form"],
        package=content["package"],
        planned=[(name, title) for name, title in content["planned"]],
        started_at=content["started_at"],
        parts={name: Finding.from_json(part) for name, part in content["parts"].items()},
    )


def anonymous(text: str, folder: Path) -> str:
    """A text for others: without the names of folders of this user."""
    return text.replace(str(folder), "OUTPUT").replace(str(Path.home()), "~")


def _replace(path: Path, text: str) -> None:
    new = path.with_suffix(f"{path.suffix}.new")
    with new.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
