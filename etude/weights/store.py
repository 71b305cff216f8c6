from pathlib import Path
def open_store(url):
    p=Path(url.removeprefix("file://")); p.mkdir(parents=True,exist_ok=True); return p
