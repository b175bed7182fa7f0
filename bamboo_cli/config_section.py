"""What the sections of the job file have in common."""

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_not_one(cls, value: Any, field: ValidationInfo) -> Any:
        """Pydantic takes it for a number, and `max_cost_usd: true` for a dollar."""
        if isinstance(value, bool) and cls.model_fields[str(field.field_name)].annotation is not bool:
            raise ValueError(f"cannot be {str(value).lower()}")
        return value
