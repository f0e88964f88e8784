"""What was measured so far, kept in a file that a later call goes on with."""

import hashlib
import json
from pathlib import Path
from typing import Any, Dict, Mapping, Optional

import fairseq_plugins
from fairseq_plugins.benchmarks.device.device_facts import as_markdown, device_facts
from fairseq_plugins.benchmarks.device.step import Figures, Step
from fairseq_plugins.reports.tables import Report
from fairseq_plugins.reports.training_log import describe_code, describe_machine

PACKAGE = Path(fairseq_plugins.__file__).parent


class Record:
    """Figures of a step's items, in ``FOLDER/STEP.json`` and as tables in ``FOLDER/STEP.md``.

    Figures of other code, of another machine or device, or with other data or flags are left out, and replaced when the
    record is written.

    Args:
        step: whose items are kept.
        command: what was typed.
    """

    def __init__(self, step: Step, *, command: str):
        self._step = step
        self._command = command
        self.facts = device_facts(step.setting)
        self._identity: Dict[str, Any] = {
            "measured_with": {"code": describe_code(), "source": source_digest(), "machine": describe_machine()},
            "device": self.facts,
            "data": [str(path.resolve()) for path in step.setting.data],
            "flags": list(step.setting.flags),
        }
        self.found: Dict[str, Figures] = self._read()

    @property
    def path(self) -> Path:
        """The file for machines."""
        return self._step.setting.folder / f"{self._step.report_name}.json"

    def _read(self) -> Dict[str, Figures]:
        """The items of an earlier call, or none.

        Raises:
            ValueError: if the file is not such a record.
        """
        if not self.path.exists():
            return {}
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            same = all(kept[name] == value for name, value in self._identity.items())
            return kept["items"] if same else {}
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{self.path} is no report of {self._step.name}: move it away") from error

    def write(self) -> str:
        """Write both files; return the tables."""
        order = [item.name for item in self._step.items()]
        self.found = {name: self.found[name] for name in order if name in self.found}
        report = Report(
            text="\n\n".join([as_markdown(self.facts), self._step.tables(self.found), self._remark()]).rstrip(),
            figures={**self._identity, "items": self.found},
            command=self._command,
        )
        return report.write(self._step.setting.folder, name=self._step.report_name)

    def _remark(self) -> str:
        missing = len(self._step.items()) - len(self.found)
        return f"{missing} items are not measured yet." if missing else ""


def source_digest(folder: Optional[Path] = None) -> str:
    """A digest of the package's source, which tells changes where there is no commit, too."""
    folder = PACKAGE if folder is None else folder
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def num_failed(found: Mapping[str, Figures]) -> int:
    """How many items failed."""
    return sum("error" in figures for figures in found.values())
