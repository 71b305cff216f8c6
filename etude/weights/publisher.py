from types import SimpleNamespace
import pickle, hashlib
from etude.config import Config
class PublisherConfig(Config): pass
class Publisher:
    def __init__(s,store,config): s.s=store
    def publish(s,v,bits):
        d=pickle.dumps(bits); r=hashlib.sha256(d).hexdigest(); (s.s/f"{v}").write_bytes(d)
        return SimpleNamespace(version=v,root=r,payload_bytes=len(d),raw_bytes=len(d),changed_share=1.0,kind="x")
