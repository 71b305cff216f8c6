"""Writes web/src/api/types.ts, the types of what the studio's server answers, from its own OpenAPI document.

python tools/studio_types.py           write it
python tools/studio_types.py --check   exit 1 where it is not what the server says
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from etude.studio.app import openapi

PLACE = Path(__file__).parents[1] / "web/src/api/types.ts"
_HEAD = """// Made by tools/studio_types.py of the server's OpenAPI document. Not to be edited.

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
"""
_PLAIN = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}


def written() -> str:
    """The whole file, as the server of this tree would have it."""
    schemas = openapi()["components"]["schemas"]  # ty: ignore[not-subscriptable]
    return "\n".join([_HEAD, *(_declared(name, schema) for name, schema in sorted(schemas.items()))])


def _declared(name: str, schema: dict[str, Any]) -> str:
    said = "".join(f"/** {' '.join(schema['description'].split())} */\n" if "description" in schema else "")
    if schema.get("type") != "object" or "properties" not in schema:
        return f"{said}export type {name} = {_type(schema)};\n"
    members = [_member(key, each, key in schema.get("required", ())) for key, each in schema["properties"].items()]
    return f"{said}export interface {name} {{\n{''.join(members)}}}\n"


def _member(name: str, schema: dict[str, Any], required: bool) -> str:
    said = f"  /** {' '.join(schema['description'].split())} */\n" if "description" in schema else ""
    return f"{said}  {name}{'' if required else '?'}: {_type(schema)};\n"


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2]
    if "const" in schema:
        return repr(schema["const"])
    if "enum" in schema:
        return " | ".join(map(repr, schema["enum"]))
    if several := schema.get("anyOf") or schema.get("oneOf"):
        return " | ".join(dict.fromkeys(map(_type, several)))
    match schema.get("type"):
        case "array" if "prefixItems" in schema:
            return f"[{', '.join(map(_type, schema['prefixItems']))}]"
        case "array":
            inner = _type(schema.get("items", {}))
            return f"({inner})[]" if " | " in inner else f"{inner}[]"
        case "object" if "properties" in schema:
            return f"{{ {' '.join(_member(*each, False).strip() for each in schema['properties'].items())} }}"
        case "object":
            more = schema.get("additionalProperties", {})
            return f"Record<string, {_type(more) if isinstance(more, dict) else 'Json'}>"
        case str() as plain:
            return _PLAIN[plain]
    return "Json"


def main() -> int:
    parser = argparse.ArgumentParser(description="Types of what the studio's server answers")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where the file is out of date")
    if parser.parse_args().check:
        if PLACE.read_text() != written():
            print(f"{PLACE} is not what the server says: python tools/studio_types.py", file=sys.stderr)
            return 1
        return 0
    PLACE.write_text(written())
    return 0


if __name__ == "__main__":
    sys.exit(main())
