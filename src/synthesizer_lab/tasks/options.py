"""The options of tasks, from run.yaml or the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, ClassVar, Self, get_type_hints

from ..errors import UserError
from ..validation import check_value

# Options of tasks and training in older runs that have no effect any more.
FORMER_OPTIONS = frozenset({"packed", "stream", "streaming"})


@dataclass(frozen=True)
class TaskOptions:
    """A frozen dataclass whose fields are options.

    Class attributes:
        name: the name on the command line.
        evaluation_options: options that do not affect training, so that an evaluation can override them.
    """

    name: ClassVar[str]
    evaluation_options: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def option_types(cls) -> dict[str, Any]:
        """The types of the options."""
        hints = get_type_hints(cls)
        return {field.name: hints[field.name] for field in fields(cls)}

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """The task with these options; raises UserError for a wrong one."""
        types = cls.option_types()
        options = {name: value for name, value in options.items() if name not in FORMER_OPTIONS}
        for name, value in options.items():
            if name not in types:
                raise UserError(f"got unknown option {name!r} of task {cls.name}; expected some of: {', '.join(types)}")
            check_value(name, value, types[name])
            least = int(name.startswith("max_"))
            if isinstance(value, int) and value < least:
                raise UserError(f"got {name}={value}; expected at least {least}")
        for field in fields(cls):
            if field.default is MISSING and field.name not in options:
                raise UserError(f"task {cls.name} needs {field.name}; pass --{field.name} or --set {field.name}=…")
        return cls(**options)

    def with_evaluation_options(self, options: Mapping[str, Any]) -> Self:
        """The task with other values of its `evaluation_options`; raises UserError for other options."""
        for option in options.keys() - self.evaluation_options:
            known = ", ".join(sorted(self.evaluation_options)) or "none"
            raise UserError(f"got {option} for the evaluation of task {self.name}; its options of evaluation: {known}")
        return self.from_options({**asdict(self), **options})
