"""What a checkpoint says of its sampling is what an open request is sampled with; what cannot be followed is said."""

import json
import shutil

import pytest
from small_models import SHIPPED

from etude.engine.config import EngineConfig
from etude.engine.server.app import ServeConfig, open_service, remarks
from etude.engine.server.bodies import ChatBody, Message, SamplingParams

SAID = {"temperature": 0.3, "top_k": 5, "repetition_penalty": 1.2, "eos_token_id": [2, 7]}


@pytest.fixture
def service(tmp_path):
    shutil.copytree(SHIPPED, tmp_path / "model")
    (tmp_path / "model/generation_config.json").write_text(json.dumps(SAID))
    made = open_service(tmp_path / "model", ServeConfig(engine=EngineConfig(cache_tokens=1024)))
    yield made
    made.engine.close()


def drawn(service, body):
    [choice] = service.choices([1, 2, 3], body, max_tokens=4, n=1, session_id=None)
    return choice.request.temperature, choice.request.top_k, choice.request.top_p


def test_a_request_that_leaves_sampling_open_is_sampled_as_the_checkpoint_says(service):
    asked = {"messages": [Message(role="user", content="Go")]}
    assert drawn(service, ChatBody(**asked)) == (0.3, 5, 1.0)
    assert drawn(service, ChatBody(**asked, temperature=1.0, top_p=0.5)) == (1.0, 5, 0.5)
    assert drawn(service, SamplingParams()) == (1.0, 0, 1.0)
    [choice] = service.choices([1], ChatBody(**asked), max_tokens=4, n=1, session_id=None)
    assert choice.request.stop_ids == {service.chat.end_id, 2, 7}


def test_what_is_not_followed_is_said(service):
    assert [each for each in remarks(service) if "repetition_penalty = 1.2, which is not followed" in each]
