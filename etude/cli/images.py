"""`etude images build|add|list|gc`: the root file systems that sandboxes start on."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

from etude.plain import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    build = actions.add_parser("build", help="build a Dockerfile; its steps run in sandboxes")
    build.add_argument("context", type=Path, help="the directory with the Dockerfile and the files it copies")
    build.add_argument("--file", type=Path, help="the Dockerfile, where it is not CONTEXT/Dockerfile")
    build.add_argument("--arg", action="append", default=[], metavar="NAME=VALUE", help="a build argument")
    build.add_argument("--target", help="the stage to build (default: the last)")
    build.add_argument("--egress", action="append", metavar="HOST", help="a host that steps may reach, NAME or *.NAME")
    build.add_argument("--config", type=Path, help="a TOML file of the build's config")
    build.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one key of it")
    add = actions.add_parser("add", help="add a directory, an OCI layout or tar, or debian:SUITE")
    add.add_argument("source")
    add.add_argument("--package", action="append", default=[], help="of debian:SUITE: a package, NAME or NAME=VERSION")
    add.add_argument("--reference", help="of an OCI layout with several images: which")
    for action in (build, add):
        action.add_argument("--name", help="what tasks and FROM call it")
    show = actions.add_parser("list", help="names, ids and sizes")
    collect = actions.add_parser("gc", help="remove what no name leads to")
    for action in (build, add, show, collect):
        action.add_argument("--dir", type=Path, help="where images are kept (default: below XDG_DATA_HOME)")
        action.add_argument("--format", choices=["erofs", "directory"], default="erofs", help="how they are kept")
        action.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    from etude.environments.images.store import ImageStore
    from etude.environments.roots import ImagesConfig

    store = ImageStore(ImagesConfig(dir=options.dir, format=options.format))
    if options.action == "build":
        said = asyncio.run(_build(store, options))
    elif options.action == "add":
        from etude.environments.images.sources import add_image

        image = add_image(
            store, options.source, name=options.name, packages=options.package, reference=options.reference
        )
        said = {"image_id": image.id, "path": str(image.path), "size": image.size}
    elif options.action == "list":
        names = store.names()
        said = {
            image.id: {"names": [name for name, of in names.items() if of == image.id], "size": image.size}
            for image in store.images()
        }
    else:
        removed = store.gc()
        said = {"images": removed.images, "layers": removed.layers, "unfinished": removed.unfinished}
    say(json.dumps(said) if options.json else "\n".join(f"{key}: {value}" for key, value in said.items()))
    return 0


async def _build(store: Any, options: argparse.Namespace) -> dict[str, Any]:
    from etude.config import load_recipe
    from etude.environments.images.build import BuildConfig, build_image
    from etude.environments.namespace import NamespaceBackend, NamespaceConfig

    hosts = [] if options.egress is None else [f"egress.hosts={json.dumps(options.egress)}"]
    config = load_recipe(options.config, BuildConfig, [*options.set, *hosts])
    backend = NamespaceBackend(NamespaceConfig(images=store.config))
    try:
        built = await build_image(
            store,
            backend,
            options.context,
            dockerfile=options.file,
            args=dict(each.partition("=")[::2] for each in options.arg),
            target=options.target,
            name=options.name,
            config=config,
        )
    finally:
        await backend.close()
    return {"image_id": built.image.id, "path": str(built.image.path), "steps": built.ran, "cached": built.cached}
