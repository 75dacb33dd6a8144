"""Arbitrary messages, drawn from the models themselves, so that a new field is covered the day it is written."""

import functools
import types
from datetime import datetime, timedelta, timezone
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from rl_pipeline.contracts.feedback import Feedback, FeedbackSignal
from rl_pipeline.contracts.model_deployed import DeploymentMetadata
from rl_pipeline.contracts.trajectory import TestResults

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**20), 10**20)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
JSON_OBJECTS = st.dictionaries(TEXTS, JSON_VALUES, max_size=3)
ZONES = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
FIRST, LAST = datetime(1970, 1, 3), datetime(2199, 12, 29)  # noqa: DTZ001 - hypothesis takes naive bounds
TIMESTAMPS = st.datetimes(FIRST, LAST, timezones=ZONES).map(datetime.isoformat)


@functools.cache
def trees(model: type[BaseModel]) -> st.SearchStrategy[dict[str, Any]]:
    """JSON objects that `model` accepts, further fields included where it is open."""
    required = {name: _field(field) for name, field in model.model_fields.items() if field.is_required()}
    optional = {name: _field(field) for name, field in model.model_fields.items() if not field.is_required()}
    drawn = st.fixed_dictionaries(required, optional=optional).map(lambda tree: _consistent(model, tree))
    if model.model_config.get("extra") != "allow":
        return drawn
    typed = model.__annotations__.get("__pydantic_extra__")
    values = trees(get_args(typed)[1]) if typed else JSON_VALUES
    keys = TEXTS.filter(lambda key: key not in model.model_fields)
    further: st.SearchStrategy[dict[str, Any]] = st.just({}) | st.dictionaries(keys, values, min_size=1, max_size=2)
    return st.tuples(drawn, further).map(lambda pair: {**pair[1], **pair[0]})


def _field(field: FieldInfo) -> st.SearchStrategy[Any]:
    return _values(Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation)


def _values(annotation: Any) -> st.SearchStrategy[Any]:
    constraints: list[Any] = []
    if get_origin(annotation) is Annotated:
        annotation, *given = get_args(annotation)
        constraints = [part for item in given for part in (item.metadata if isinstance(item, FieldInfo) else [item])]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (types.UnionType, Union):
        return st.one_of(*map(_values, arguments))
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is list:
        return st.lists(_values(arguments[0]), min_size=_bound(constraints, "min_length") or 0, max_size=3)
    if origin is dict:
        return JSON_OBJECTS if arguments[1] is Any else st.dictionaries(_values(arguments[0]), _values(arguments[1]))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return st.deferred(lambda: trees(annotation))
    return _scalars(annotation, constraints)


def _scalars(annotation: Any, constraints: list[Any]) -> st.SearchStrategy[Any]:
    if annotation is str:
        pattern = _bound(constraints, "pattern")
        return st.from_regex(pattern, fullmatch=True) if pattern else TEXTS.map(lambda text: text or "x")
    if annotation is int:
        return st.integers(_bound(constraints, "ge"), _bound(constraints, "le"))
    if annotation is float:
        low, above, high = (_bound(constraints, name) for name in ("ge", "gt", "le"))
        low, strictly = (above, True) if low is None and above is not None else (low, False)
        return st.floats(low, high, exclude_min=strictly, allow_nan=False, allow_infinity=False)
    return {bool: st.booleans(), datetime: TIMESTAMPS, type(None): st.none()}[annotation]


def _bound(constraints: list[Any], name: str) -> Any:
    found = [getattr(part, name, None) for part in constraints if not isinstance(part, annotated_types.Interval)]
    return next((value for value in found if value is not None and value is not PydanticUndefined), None)


def _consistent(model: type[BaseModel], tree: dict[str, Any]) -> dict[str, Any]:
    """The tree with the rules that span fields kept."""
    for start, end in (("start_timestamp", "end_timestamp"), ("start", "end")):
        if tree.get(start) and tree.get(end):
            tree[start], tree[end] = sorted((tree[start], tree[end]), key=datetime.fromisoformat)
    if model in (Feedback, FeedbackSignal):
        tree["rating"] = 3 if tree["kind"] == "stars" else None
        tree["text"] = tree.get("text") or ("said" if tree["kind"] == "comment" else None)
    if model is TestResults:
        tree["total"] = max(tree["total"], tree["passed"])
    if model is DeploymentMetadata and tree.get("event") == "rolled_back":
        tree["reason"] = tree.get("reason") or "high_error_rate"
    return tree
