"""Licences, copies and quality of single texts."""

import random

import pytest
from corpora import GPL, MIT, module

from etude.trainer.corpus.copies import NEAR, Copies, signature_of, similarity
from etude.trainer.corpus.filtering import holds_secret
from etude.trainer.corpus.licences import Licences, is_permissive, licence_of_header, licence_of_text
from etude.trainer.corpus.quality import fault_of, text_of

BSD = "Redistribution and use in source and binary forms, with or without\nmodification, are permitted.\n"


@pytest.mark.parametrize(
    ("expression", "permissive"),
    [
        ("MIT", True), ("mit", True), ("GPL-3.0-only", False), ("MIT OR GPL-3.0-only", True),
        ("MIT AND GPL-3.0-only", False), ("(GPL-2.0-only OR Apache-2.0) AND ISC", True), ("unknown", False),
        ("Apache-2.0 WITH LLVM-exception", True), ("GPL-2.0-only WITH Classpath-exception-2.0", False), ("none", False),
        ("MIT OR", False), ("(MIT", False), ("", False), ("MIT MIT", False), ("(" * 5000, False),
    ],
)  # fmt: skip
def test_an_expression_is_permissive_or_not(expression, permissive):
    assert is_permissive(expression) == permissive


def test_known_texts_are_told_apart():
    three = BSD + "Neither the name of the author nor the names of its contributors may be used.\n"
    texts = {
        MIT: "MIT", GPL: "GPL-3.0-only", BSD: "BSD-2-Clause", three: "BSD-3-Clause", "Do as I say.\n": "unknown",
        "                 Apache License\n           Version 2.0, January 2004\n": "Apache-2.0",
        "Mozilla Public License Version 2.0\n": "MPL-2.0", MIT + "\nBut:\n" + BSD: "MIT AND BSD-2-Clause",
        MIT + "\n“Commons Clause” License Condition v1.0\n": "MIT AND Commons-Clause",
    }  # fmt: skip
    assert {text: licence_of_text(text) for text in texts} == texts


def test_a_header_is_read_before_all_else():
    assert licence_of_header("# SPDX-License-Identifier: MIT OR Apache-2.0\nx = 1\n") == "MIT OR Apache-2.0"
    assert licence_of_header("/* SPDX-License-Identifier: ISC */\n") == "ISC"
    apache = '# Licensed under the Apache License, Version 2.0 (the "License");\n# you may not use\n'
    assert licence_of_header(apache) == "Apache-2.0"
    split = "// This is free software under the terms of the GNU General\n// Public License as published\n"
    assert licence_of_header(split) == "GPL-3.0-only"
    assert licence_of_header("x = 1\n") is None


def test_the_nearest_folder_that_says_anything_decides():
    tree = {
        "LICENSE": GPL, "a/pyproject.toml": '[project]\nlicense = "MIT"\n', "b/package.json": '{"license": "ISC"}',
        "c/Cargo.toml": '[package]\nlicense = "MIT/Apache-2.0"\n', "d/LICENSE-MIT": MIT, "d/LICENSE-GPL": GPL,
        "e/LICENSE": MIT, "e/COPYING": GPL, "f/pyproject.toml": "[project]\n", "g/pyproject.toml": "[broken",
        "h/pyproject.toml": '[project]\nlicense = { text = "MIT License" }\n', "i/package.json": "[" * 100_000,
    }  # fmt: skip
    licences = Licences(tree, lambda path: tree[path].encode())
    expected = {
        "x.py": "GPL-3.0-only", "a/deep/er/x.py": "MIT", "b/x.js": "ISC", "c/x.rs": "MIT OR Apache-2.0",
        "d/x.py": "(GPL-3.0-only) OR (MIT)", "e/x.py": "(GPL-3.0-only) AND (MIT)", "f/x.py": "GPL-3.0-only",
        "g/x.py": "GPL-3.0-only", "h/x.py": "MIT", "i/x.js": "GPL-3.0-only",
    }  # fmt: skip
    assert {path: licences.of(path, "") for path in expected} == expected


@pytest.mark.parametrize(
    ("said", "licence"),
    [
        ("License-Expression: MIT\nLicense: GPL", "MIT"), ("License: BSD", "BSD-3-Clause"),
        ("License: see there\nClassifier: License :: OSI Approved :: Apache Software License", "Apache-2.0"),
        ("License: see there", "see there"), ("Name: one\n\nLicense: MIT", "none"),
    ],
)  # fmt: skip
def test_an_unpacked_wheel_says_its_licence(said, licence):
    tree = {"one/a.py": "", "one-1.0.dist-info/METADATA": said}
    assert Licences(tree, lambda path: tree[path].encode()).of("one/a.py", "") == licence
    two = {**tree, "two-1.0.dist-info/METADATA": said}
    assert Licences(two, lambda path: two[path].encode()).of("one/a.py", "") == "none", "whose file is it?"
    assert Licences((), lambda _: None).of("a/x.py", "") == "none"


def test_signatures_tell_how_much_two_texts_share():
    words = [f"word{n}" for n in range(600)]
    for kept in (600, 540, 300, 0):
        other = words[:kept] + [f"other{n}" for n in range(600 - kept)]
        runs = [{tuple(each[at : at + 5]) for at in range(len(each) - 4)} for each in (words, other)]
        true = len(runs[0] & runs[1]) / len(runs[0] | runs[1])
        assert similarity(signature_of(words), signature_of(other)) == pytest.approx(true, abs=0.15)


def test_copies_are_found_among_many_however_they_are_laid_out():
    copies, rng = Copies(), random.Random(0)
    texts = [" ".join(f"w{rng.randrange(4000)}" for _ in range(200)) for _ in range(300)]
    assert [copies.find(text) for text in texts] == [None] * 300
    found = copies.find(texts[123].replace(" ", "\n  "))
    assert found is not None and (found.of, found.exact) == (123, True)
    words = texts[200].split()
    found = copies.find(" ".join([*words[:195], "quite", "other", "words"]))
    assert found is not None and (found.of, found.exact) == (200, False)
    assert copies.find(" ".join([*words[:100], *(f"new{n}" for n in range(100))])) is None
    assert 0.5 < NEAR < 1


def test_a_long_line_of_anything_is_looked_at_quickly():
    for line in ("1 " * 400_000, "((((" * 200_000, '"' * 800_000, "a1." * 300_000, "1.2.3-" * 130_000 + "!"):
        assert fault_of("x.py", f"x = 1  # a comment of some length, and more of it\ny = 2\n{line}\n", "python")


@pytest.mark.parametrize("written", [
    "def edit(text):\n    '''Do not edit in place.'''\n    return text.replace('a', 'b')  # generated by nobody\n",
    "names = {'red': 1, 'green': 2}\n\n\ndef colour(name):\n    return names[name]\n",
    "def sample(model):\n    # what the model has generated by now\n    return model.sample()\n",
])  # fmt: skip
def test_what_a_person_wrote_is_kept(written):
    assert fault_of("x.py", written, "python") is None


@pytest.mark.parametrize("said", [
    "# Generated by Django 4.2 on 2026-01-01", "// Code generated by protoc-gen-go. DO NOT EDIT.", "/* @generated */",
    "<!-- This file is automatically generated. -->", "# Auto-generated; see make_table.py",
])  # fmt: skip
def test_what_says_that_a_program_wrote_it_is_believed(said):
    assert fault_of("x.py", f"{said}\n{module('a')}", "python") == "generated"


def test_prose_may_have_long_lines_and_code_may_not():
    paragraph = "A paragraph is one line in many an editor, and goes on and on. " * 20 + "\n"
    assert fault_of("a.md", paragraph * 3, "markdown") is None
    assert fault_of("a.py", f"# {paragraph}" + module("a"), "python") == "long_lines"


def test_bytes_that_are_no_text_are_told():
    assert text_of(b"a\0b") is None and text_of(b"\xff\xfe\xfa") is None
    assert text_of(b"\xef\xbb\xbfa\r\nb\rc") == "a\nb\nc"


def test_a_secret_in_several_lines_is_found():
    begin, end = "-----BEGIN RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----"
    body = "\n".join("MIIEpAIBAAKCAQEA7bq3VZ8sXfJ2k1Lw9Qh5TgYdR0nPcU4eKxWvBmAiOz6HjF8s"[:64] for _ in range(6))
    assert holds_secret(f'KEY = """\n{begin}\n{body}\n{end}\n"""\n')
    assert not holds_secret(f"def is_key(text):\n    return text.startswith({begin!r})\n")


PERMITS = "MIT License\n\nPermission is hereby granted, free of charge, to any person obtaining a copy"


@pytest.mark.parametrize(
    "head",
    [
        "# Released under the GPLv3.", "# License: GPL v2", "# Licence: LGPL-2.1-or-later", "# licensed under the GPL",
        "# From an answer, licensed CC BY-SA 4.0", "# Creative Commons Attribution-ShareAlike 4.0",
        "# SPDX-License-Identifier: MIT\n# SPDX-License-Identifier: GPL-2.0-only",
    ],
)  # fmt: skip
def test_a_file_that_says_less_is_not_under_its_repositorys_licence(head):
    licences = Licences({"LICENSE"}, lambda _: PERMITS.encode())
    assert is_permissive(licences.of("a.py", "# uses ggplot 2\nx = 1\n"))
    assert not is_permissive(licences.of("a.py", f"{head}\nx = 1\n"))


@pytest.mark.parametrize(
    ("files", "kept"),
    [
        ({"LICENSE": PERMITS, "vendor/COPYING.LESSER": "GNU LESSER GENERAL PUBLIC LICENSE"}, False),
        ({"LICENSE": PERMITS, "vendor/LICENSE.GPL.txt": "GNU GENERAL PUBLIC LICENSE"}, False),
        ({"LICENSE": f"Apache License\nVersion 2.0\n{'x ' * 999}\nCommons Clause License Condition v1.0"}, False),
        ({"LICENSE": f"Apache License\nVersion 2.0\n{'x ' * 999}"}, True),
        ({"LICENSE.MIT": PERMITS, "LICENSE.APACHE": "Apache License\nVersion 2.0\n"}, True),
        ({"LICENSE": PERMITS, "vendor/license.py": "x = 1"}, True),
        ({"LICENSE": "PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2\nwe are not distributing it under the GPL"}, True),
    ],
)
def test_what_lies_beside_counts_whatever_its_name_ends_with(files, kept):
    assert is_permissive(Licences(files, lambda path: files[path].encode()).of("vendor/a.py", "x = 1\n")) == kept
