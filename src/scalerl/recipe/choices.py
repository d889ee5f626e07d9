"""Sections with one type for each choice: a length control or a curriculum has constants of its
own, and the type of a choice has exactly these.

A base class states what all choices of a section share. The types of the built-in choices derive
from it, and one with further keys for the user's own, whose constants are checked against the
signature of its function when a run is prepared (`algorithm/constants.py`). The types form a union
of pydantic, with `Choice.tag` as its discriminator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, get_args

from pydantic import SerializerFunctionWrapHandler, model_serializer, model_validator
from pydantic.fields import FieldInfo

from scalerl.recipe.fields import Section
from scalerl.recipe.names import Names

#: Tag of the type for choices of the user.
OWN = "own"
#: Why a choice does not use a constant, where the reason helps: (key, choice) → reason.
REASONS = {
    ("length.max_tokens", "interruption"): "length.think_tokens_max and length.answer_tokens limit "
    "a rollout",
}


class Choice(Section):
    """A choice with its constants. Only a direct subclass, the section, is named in `Recipe`."""

    #: Dotted key of the field that chooses, as length.control.
    key: ClassVar[str]
    names: ClassVar[Names]
    #: The types of the built-in choices.
    types: ClassVar[dict[str, type[Choice]]]

    @classmethod
    def section(cls) -> type[Choice]:
        """The class with the fields that all choices share."""
        return next(each for each in cls.__mro__ if Choice in each.__bases__)

    @classmethod
    def all_fields(cls) -> dict[str, FieldInfo]:
        """The fields of all choices: that which chooses, all constants, and those shared."""
        shared = dict(cls.section().model_fields)
        switch = cls._switch()
        every = {k: v for made in cls.types.values() for k, v in made.model_fields.items()}
        constants = {k: v for k, v in every.items() if k not in shared}
        return {switch: shared[switch]} | constants | shared

    @classmethod
    def tag(cls, data: Any) -> str:
        """The tag of the type for this data: the choice, if it is a built-in one."""
        given = data if isinstance(data, Mapping) else vars(data) if data is not None else {}
        choice = given.get(cls._switch())
        if choice is None:
            return str(cls.section().model_fields[cls._switch()].default)
        return choice if isinstance(choice, str) and choice in cls.types else OWN

    @property
    def constants(self) -> dict[str, Any]:
        """The constants of this choice, by name."""
        own = type(self).model_fields.keys() - self.section().model_fields
        declared = {k: getattr(self, k) for k in type(self).model_fields if k in own}
        return declared | (self.model_extra or {})

    @classmethod
    def _switch(cls) -> str:
        return cls.key.partition(".")[2]

    @model_validator(mode="before")
    @classmethod
    def _fitting(cls, data: Any) -> Any:
        """Refuse an unknown choice, constants of others, and a choice without its constants."""
        if not isinstance(data, Mapping):
            return data
        section, switch = cls.key.split(".")
        # None is an unset key: it gets the default of the choice.
        given = {key: value for key, value in data.items() if value is not None}
        choice = given.get(switch, cls.model_fields[switch].default)
        if not isinstance(choice, str):
            raise ValueError(f"{cls.key} must be text, not {choice}")
        try:
            cls.names.check(choice)
        except ValueError as error:
            raise ValueError(f"{cls.key}: {error}") from None
        for key in given if cls.model_config["extra"] == "forbid" else ():
            users = [name for name, made in cls.types.items() if key in made.model_fields]
            if users and key not in cls.model_fields:
                why = REASONS.get((f"{section}.{key}", choice))
                raise ValueError(
                    f"{section}.{key} is not used by {choice}, only by {' and '.join(users)}: "
                    "leave it out" + (f" ({why})" if why else "")
                )
        needed = [key for key, info in cls.model_fields.items() if info.is_required()]
        missing = [f"{section}.{key}" for key in needed if key not in given]
        if missing:
            raise ValueError(f'{cls.key} = "{choice}" needs {" and ".join(missing)}: set them')
        return given

    @model_serializer(mode="wrap")
    def _constants_beside_the_choice(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Constants directly after the choice, where a reader of the file looks for them.
        data: dict[str, Any] = plain(self)
        switch = self._switch()
        return {switch: data[switch], **{key: data[key] for key in self.constants}, **data}


def section_of(info: FieldInfo) -> type[Section] | None:
    """The section that a field of a recipe holds; None for a plain value."""
    made = info.annotation
    if isinstance(made, type) and issubclass(made, Section):
        return made
    members = [get_args(member)[0] for member in get_args(made) if get_args(member)]
    if members and isinstance(members[0], type) and issubclass(members[0], Choice):
        return members[0].section()
    return None
