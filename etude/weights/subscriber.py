from types import SimpleNamespace
import pickle, hashlib
from etude.config import Config
class SubscriberConfig(Config): pass
class Subscriber:
    def __init__(s,store,config): s.s=store
    def fetch(s,bits,cur,target):
        d=(s.s/f"{target}").read_bytes(); return pickle.loads(d), SimpleNamespace(root=hashlib.sha256(d).hexdigest(),payload_bytes=len(d))
