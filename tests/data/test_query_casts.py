"""No cast of a query asks the clock."""

from __future__ import annotations

import pytest

from dprecipe.data.query import find_postgres_reason, find_reason

CLOCK = [
    "CAST('now' AS timestamp)", "'now'::date", "' NOW '::timestamp(3)", "timestamp 'now'", "DATE 'today'",
    "born > 'now'", "born BETWEEN 'yesterday' AND '2030-01-01'", "'today 12:00'::timestamp",
    "coalesce(born, 'tomorrow')", "CASE WHEN true THEN 'now' ELSE ward END::date", "greatest(born, 'now')",
    "born IN ('2020-01-01', '(now)')", "date('now')", "date_part('epoch', 'now')", "try_cast('now' AS date)",
    "('n' || 'ow')::date", "concat('n', 'ow')::timestamp", "concat('n', 'ow')::text::timestamp",
    "lower('N' || 'ow')::date",
    "CAST(concat('n', 'ow') AS date)", "CAST((('n' || 'ow')) AS time)", "date(replace('nxow', 'x', ''))",
    "'nowx'::varchar(3)::date", "CAST('nowx' AS varchar(3))::date",
    "(CASE WHEN true THEN substr('xnow', 2) END)::date", "CASE WHEN true THEN substr('xnow', 2) END::date",
    "coalesce(trim('n' || 'ow'), ward)::date", "born > CAST(reverse('won') AS varchar)::date",
]  # fmt: skip
UNKNOWN = [
    "'now'::timestamptz", "'now'::\"timestamp\"", "\"date\" 'now'", "timestamptz 'now'", "'now'::abstime",
    "'x'::regclass",
    "CAST('now' AS timestamptz)", "CAST('now' AS \"date\")", "'n' 'ow'", "'n'\n'ow'::date", "(ward) 'now'",
    "timestamp(3) 'now'",
]  # fmt: skip
FINE = [
    "date_part('year', born) > 2000", "born > '2020-01-01'", "born::date - DATE '2000-01-01'", "CAST(born AS date)",
    "ward LIKE '%now%'", "ward ILIKE 'today'", "lower(ward) = 'icu' AND born::date > '2020-01-01'",
    "(born + INTERVAL '1 day')::date", "date_trunc('day', born)::date", "'epoch'::timestamp", "'infinity'::date",
    "ward || 'x', born::date", "make_date(2020, 1, 1)::timestamp", "born::timestamp(3)::date", "born::text",
    "CASE WHEN lower(ward) = 'x' THEN 1 ELSE 2 END", "note = 'nowhere'", "(lower(ward) = 'x')::int", "'12:00'::time",
    "CASE WHEN a THEN born ELSE other END::date", "date(born)", "round(x::numeric, 2)",
]  # fmt: skip


@pytest.mark.parametrize("value", CLOCK)
@pytest.mark.parametrize("form", ["SELECT {} AS x FROM visits", "SELECT x FROM visits WHERE ({}) IS NOT NULL"])
def test_what_may_ask_the_clock_is_refused(value: str, form: str) -> None:
    assert "time" in find_postgres_reason(form.format(value), ("visits",))


@pytest.mark.parametrize("value", UNKNOWN)
def test_types_that_are_not_known_are_refused(value: str) -> None:
    for find in (find_reason, find_postgres_reason):
        assert "is no type that is known here" in find(f"SELECT {value} AS x FROM visits", ("visits",))


@pytest.mark.parametrize("value", FINE)
def test_other_casts_and_texts_are_taken(value: str) -> None:
    assert find_postgres_reason(f"SELECT {value} FROM visits", ("visits",)) == ""
    assert find_reason(f"SELECT {value} FROM visits", ("visits",)) == ""
