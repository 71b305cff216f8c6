"""Database tasks: a schema with data in it has to change, and no row may be lost on the way.

Owns `migration_task(level, seed)`. The workspace holds the migrations so far, a sample of the data and a script that
starts a PostgreSQL with both; the agent adds a migration. The verifier (`inside.databases`) runs it over data that
nobody has seen, with the cases the instruction speaks of, in a database of its own. Levels are what has to be done:

    1  a column is added, and filled          4  a table comes out of another, duplicates merged
    2  a column is split in two               5  the same over three tables, with balances and a rule that holds
    3  text becomes numbers

Sandboxes need PostgreSQL's programs below /usr/lib/postgresql. Everything is drawn from the seed. Runs nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from etude.records import Limits, Task
from etude.tasks.verifiers import database_verifier

Row = dict[str, Any]
LIMITS = Limits(max_turns=40, max_context_tokens=32_768, max_sampled_tokens=16_384, wall_s=900.0)
TIMEOUT_S = 60.0
NEXT = "migrations/002_change.sql"
_START = """\
#!/bin/sh
# Starts a PostgreSQL of your own with all migrations and the sample in it; then: psql -h /tmp/database -U postgres
set -e
PATH=$(echo /usr/lib/postgresql/*/bin | tr ' ' ':'):$PATH
if [ -d /tmp/database ]; then
  pg_ctl -D /tmp/database/data -m immediate stop >/dev/null 2>&1 || true
  rm -rf /tmp/database
fi
mkdir /tmp/database
initdb -D /tmp/database/data -N -U postgres --no-locale -E UTF8 -A trust --wal-segsize=1 >/dev/null
options="-k /tmp/database -h '' -c fsync=off -c shared_buffers=8MB"
pg_ctl -D /tmp/database/data -w -o "$options" -l /tmp/database/log start >/dev/null
run() { psql -X -q -v ON_ERROR_STOP=1 -h /tmp/database -U postgres -f "$1"; }
run migrations/001_start.sql
run sample.sql
for file in migrations/*.sql; do [ "$file" = migrations/001_start.sql ] || run "$file"; done
"""
_FIRST = ("Ada", "Bo", "Chidi", "Dagny", "Élodie", "Farah", "Goran", "Hana", "Ines", "Jörg", "Kofi", "Lin")
_LAST = ("Okafor", "Lind", "da Silva", "Meyer", "O'Brien", "Novak", "Tran", "Haddad", "Sato", "Berg")
_PEOPLE = ("customers", "members", "clients", "patients", "readers", "donors")
_DEEDS = ("orders", "bookings", "loans", "visits", "tickets", "rentals")
_SUMS = ("amount", "price", "fee", "total", "charge")


@dataclass(frozen=True)
class Change:
    """One migration: the schema before it, the request, what does it, and what must be so afterwards."""

    schema: str
    request: str
    solution: str
    data: Callable[[random.Random, int], dict[str, list[Row]]]
    """Rows by table, in the order in which they go in; with about so many of the largest."""
    expected: Callable[[dict[str, list[Row]]], dict[str, tuple[str, list[Row]]]]
    """Of that data, by a name: a query, and its rows afterwards."""


def migration_task(level: int, seed: int) -> Task:
    """The task of that level (1 to 5) and seed; the same on every machine."""
    rng = random.Random(f"etude migrations v1 {level} {seed}")
    change = _LEVELS[level](rng)
    sample, hidden = change.data(rng, 6), change.data(rng, 60)
    files = {"migrations/001_start.sql": change.schema.encode()}
    asked = change.expected(hidden)
    verifier = database_verifier(
        files, "migrations", _inserts(hidden), {key: query for key, (query, _) in asked.items()},
        {key: rows for key, (_, rows) in asked.items()}, TIMEOUT_S,
    )  # fmt: skip
    return Task(
        id=f"migration-{level}-{seed}",
        instruction=(
            f"{change.request}\n\nWrite the migration as {NEXT}. It runs once, by psql, on a database with data in it. "
            "`sh start.sh` starts one to try it on.\n"
        ),
        files={**files, "sample.sql": _inserts(sample).encode(), "start.sh": _START.encode()},
        verifier=verifier,
        solution={NEXT: change.solution.encode()},
        limits=LIMITS,
        provenance={"family": "migration", "seed": seed, "difficulty": {"level": level}, "executable": ["start.sh"]},
    )


def _inserts(data: dict[str, list[Row]]) -> str:
    lines = []
    for table, rows in data.items():
        for row in rows:
            values = ", ".join(_literal(value) for value in row.values())
            lines.append(f"insert into {table} ({', '.join(row)}) values ({values});\n")
    return "".join(lines)


def _literal(value: Any) -> str:
    if value is None:
        return "null"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


def _columns(table: str, columns: Sequence[str]) -> str:
    """Which of these columns a table has, and whether they may be null."""
    names = ", ".join(f"'{column}'" for column in columns)
    return (
        f"select column_name, is_nullable from information_schema.columns where table_name = '{table}' "
        f"and column_name in ({names}) order by 1"
    )


def _described(**nullable: str) -> list[Row]:
    return [{"column_name": name, "is_nullable": nullable[name]} for name in sorted(nullable)]


# --- the levels -------------------------------------------------------------------------------------------------------


def _added(rng: random.Random) -> Change:
    table, column, most = rng.choice(_DEEDS), rng.choice(_SUMS), rng.randint(50, 200)
    new = rng.choice(("tier", "size", "class"))
    return Change(
        schema=f"create table {table} (id integer primary key, {column} integer not null);\n",
        request=(
            f"`{table}` needs a text column `{new}` that is never null: 'large' where {column} is at least {most}, "
            "'small' elsewhere, and 'small' for rows that do not say."
        ),
        solution=(
            f"alter table {table} add column {new} text not null default 'small';\n"
            f"update {table} set {new} = 'large' where {column} >= {most};\n"
        ),
        data=lambda rng, count: {
            table: [{"id": n, column: rng.choice((most - 1, most, rng.randint(0, 2 * most)))} for n in range(count)]
        },
        expected=lambda data: {
            "rows": (f"select id, {new} from {table} order by id",
                     [{"id": row["id"], new: "large" if row[column] >= most else "small"} for row in data[table]]),
            "columns": (_columns(table, [new]), _described(**{new: "NO"})),
            "default": (f"select column_default like '%small%' as small from information_schema.columns "
                        f"where table_name = '{table}' and column_name = '{new}'", [{"small": True}]),
        },
    )  # fmt: skip


def _split(rng: random.Random) -> Change:
    table = rng.choice(_PEOPLE)

    def parts(name: str) -> Row:
        first, _, last = name.partition(" ")
        return {"first_name": first, "last_name": last or None}

    return Change(
        schema=f"create table {table} (id integer primary key, name text not null);\n",
        request=(
            f"Split `name` of `{table}` into `first_name`, which is never null, and `last_name`: the first word, and "
            "all that follows the space behind it; null where nothing does. `name` goes."
        ),
        solution=(
            f"alter table {table} add column first_name text, add column last_name text;\n"
            f"update {table} set first_name = split_part(name, ' ', 1),\n"
            "  last_name = nullif(case when strpos(name, ' ') > 0 then substr(name, strpos(name, ' ') + 1) end, '');\n"
            f"alter table {table} alter column first_name set not null, drop column name;\n"
        ),
        data=lambda rng, count: {
            table: [
                {"id": n, "name": rng.choice((rng.choice(_FIRST), f"{rng.choice(_FIRST)} {rng.choice(_LAST)}"))}
                for n in range(count)
            ]
        },
        expected=lambda data: {
            "rows": (f"select id, first_name, last_name from {table} order by id",
                     [{"id": row["id"], **parts(row["name"])} for row in data[table]]),
            "columns": (_columns(table, ["name", "first_name", "last_name"]),
                        _described(first_name="NO", last_name="YES")),
        },
    )  # fmt: skip


def _numbers(rng: random.Random) -> Change:
    table, column = rng.choice(_DEEDS), rng.choice(_SUMS)

    def written(rng: random.Random) -> str | None:
        cents = rng.choice((0, 5, rng.randint(0, 500_000)))
        plain = rng.choice((f"{cents / 100:.2f}", f"{cents / 100:,.2f}", str(cents // 100)))
        return rng.choice((plain, f" {plain} ", f"{plain} EUR", f"EUR {plain}", None, "unknown"))

    def cents(text: str | None) -> int | None:
        plain = (text or "").replace("EUR", "").replace(",", "").strip()
        return round(float(plain) * 100) if plain.replace(".", "", 1).isdigit() else None

    return Change(
        schema=f"create table {table} (id integer primary key, {column} text);\n",
        request=(
            f'`{column}` of `{table}` is text that people typed: "1,204.50", " 7 ", "12.00 EUR", "EUR 3". Replace it '
            f"by an integer column `{column}_cents`; null where the text was null or is no number. From then on "
            "nothing below zero may be stored in it."
        ),
        solution=(
            f"alter table {table} add column {column}_cents integer check ({column}_cents >= 0);\n"
            f"update {table} set {column}_cents = round(plain::numeric * 100)\n"
            "  from (\n"
            f"    select id as of, trim(replace(replace({column}, 'EUR', ''), ',', '')) as plain from {table}\n"
            "  ) cleaned\n"
            f"  where of = id and plain ~ '^[0-9]+(\\.[0-9]+)?$';\n"
            f"alter table {table} drop column {column};\n"
        ),
        data=lambda rng, count: {table: [{"id": n, column: written(rng)} for n in range(count)]},
        expected=lambda data: {
            "rows": (f"select id, {column}_cents as cents from {table} order by id",
                     [{"id": row["id"], "cents": cents(row[column])} for row in data[table]]),
            "columns": (_columns(table, [column, f"{column}_cents"]), _described(**{f"{column}_cents": "YES"})),
            "type": (f"select data_type from information_schema.columns where table_name = '{table}' and column_name = "
                     f"'{column}_cents'", [{"data_type": "integer"}]),
            "rule": (f"select count(*) > 0 as checked from pg_constraint where contype = 'c' and conrelid = "
                     f"'{table}'::regclass and pg_get_constraintdef(oid) like '%{column}_cents%'", [{"checked": True}]),
        },
    )  # fmt: skip


def _emails(rng: random.Random, count: int) -> list[str]:
    """Some people twice, in other letters."""
    people = [f"{rng.choice(_LAST[:2]).lower()}{n}@example.org" for n in range(max(count // 3, 2))]
    return [rng.choice((str.lower, str.upper, str.title))(rng.choice(people)) for _ in range(count)]


def _extracted(rng: random.Random) -> Change:
    deeds, people = rng.choice(_DEEDS), rng.choice(_PEOPLE)
    person = people.removesuffix("s")

    def data(rng: random.Random, count: int) -> dict[str, list[Row]]:
        emails = _emails(rng, count)
        return {deeds: [{"id": n, "name": rng.choice(_FIRST), "email": email} for n, email in enumerate(emails, 1)]}

    def expected(data: dict[str, list[Row]]) -> dict[str, tuple[str, list[Row]]]:
        latest: dict[str, str] = {}
        for row in data[deeds]:
            latest[row["email"].lower()] = row["name"]
        return {
            "people": (f'select email, name from {people} order by email collate "C"',
                       [{"email": email, "name": latest[email]} for email in sorted(latest)]),
            "rows": (f"select d.id, p.email from {deeds} d join {people} p on p.id = d.{person}_id order by d.id",
                     [{"id": row["id"], "email": row["email"].lower()} for row in data[deeds]]),
            "columns": (_columns(deeds, ["name", "email", f"{person}_id"]), _described(**{f"{person}_id": "NO"})),
            "keys": (f"select contype from pg_constraint where (contype = 'f' and conrelid = '{deeds}'::regclass) or "
                     f"(contype = 'u' and conrelid = '{people}'::regclass) order by 1",
                     [{"contype": "f"}, {"contype": "u"}]),
        }  # fmt: skip

    return Change(
        schema=f"create table {deeds} (id integer primary key, name text not null, email text not null);\n",
        request=(
            f"Give the people in `{deeds}` a table `{people}` of their own: `id`, `email` (in small letters, by a "
            f"unique constraint no two alike) and `name`, the one that the {deeds} of the highest id has for that "
            f"email, whatever the case it is written in. `{deeds}` gets `{person}_id`, never null, a foreign key, and "
            "loses `name` and `email`."
        ),
        solution=(
            f"create table {people} (id serial primary key, email text not null unique, name text not null);\n"
            f"insert into {people} (email, name)\n"
            f"  select distinct on (lower(email)) lower(email), name from {deeds} order by lower(email), id desc;\n"
            f"alter table {deeds} add column {person}_id integer references {people} (id);\n"
            f"update {deeds} set {person}_id = p.id from {people} p where p.email = lower({deeds}.email);\n"
            f"alter table {deeds} alter column {person}_id set not null, drop column name, drop column email;\n"
        ),
        data=data,
        expected=expected,
    )


def _merged(rng: random.Random) -> Change:
    deeds, people = rng.choice(_DEEDS), rng.choice(_PEOPLE)
    person = people.removesuffix("s")

    def data(rng: random.Random, count: int) -> dict[str, list[Row]]:
        emails = _emails(rng, count // 2 + 2)
        ids = rng.sample(range(1, 10 * count), len(emails))
        return {
            people: [
                {"id": n, "email": email, "balance": rng.randint(-50, 90)} for n, email in zip(ids, emails, strict=True)
            ],
            deeds: [{"id": n, f"{person}_id": rng.choice(ids)} for n in range(count)],
            "notes": [{"id": n, f"{person}_id": rng.choice((*ids, None)), "body": f"n{n}"} for n in range(count // 2)],
        }  # fmt: skip

    def expected(data: dict[str, list[Row]]) -> dict[str, tuple[str, list[Row]]]:
        kept: dict[str, int] = {}
        balance: dict[str, int] = {}
        for row in sorted(data[people], key=lambda row: row["id"]):
            email = row["email"].lower()
            kept.setdefault(email, row["id"])
            balance[email] = balance.get(email, 0) + row["balance"]
        now = {row["id"]: kept[row["email"].lower()] for row in data[people]}
        key = f"{person}_id"
        return {
            "people": (f"select id, email, balance from {people} order by id",
                       sorted(({"id": kept[email], "email": email, "balance": balance[email]} for email in kept),
                              key=lambda row: row["id"])),
            "rows": (f"select id, {key} as person from {deeds} order by id",
                     [{"id": row["id"], "person": now[row[key]]} for row in data[deeds]]),
            "notes": (f"select id, {key} as person, body from notes order by id",
                      [{"id": row["id"], "person": now.get(row[key]), "body": row["body"]} for row in data["notes"]]),
            "unique": (f"select count(*) > 0 as unique from pg_index where indrelid = '{people}'::regclass and "
                       "indisunique and pg_get_indexdef(indexrelid) like '%lower(email)%'", [{"unique": True}]),
            "keys": (f"select count(*) as keys from pg_constraint where contype = 'f' and "
                     f"confrelid = '{people}'::regclass", [{"keys": 2}]),
        }  # fmt: skip

    return Change(
        schema=(
            f"create table {people} (id integer primary key, email text not null, balance integer not null);\n"
            f"create table {deeds} (id integer primary key, {person}_id integer not null references {people} (id));\n"
            f"create table notes (id integer primary key, {person}_id integer references {people} (id), body text);\n"
        ),
        request=(
            f"Some {people} are there twice, with the same email in other letters. Merge them: the lowest id stays, "
            f"with the sum of the balances and its email in small letters, and what `{deeds}` and `notes` say of the "
            "others goes to it; foreign keys stay. See to it that it cannot happen again, with a unique index on "
            "`lower(email)`."
        ),
        solution=_merging(deeds, people, person),
        data=data,
        expected=expected,
    )


def _merging(deeds: str, people: str, person: str) -> str:
    return (
        "create temp table merged as\n"
        f"  select id as old, min(id) over (partition by lower(email)) as new from {people};\n"
        f"update {deeds} set {person}_id = new from merged where {person}_id = old;\n"
        f"update notes set {person}_id = new from merged where {person}_id = old;\n"
        f"update {people} set email = lower(email), balance = (\n"
        f"  select sum(other.balance) from {people} other join merged on old = other.id where new = {people}.id\n"
        f") where id in (select new from merged);\n"
        f"delete from {people} where id not in (select new from merged);\n"
        f"create unique index on {people} (lower(email));\n"
        "drop table merged;\n"
    )


_LEVELS: dict[int, Callable[[random.Random], Change]] = {1: _added, 2: _split, 3: _numbers, 4: _extracted, 5: _merged}
