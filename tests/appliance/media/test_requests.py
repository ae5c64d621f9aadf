"""What may be configured of models that hear, speak or draw."""

import pytest
from inline import GeneratorEngine, engine_plugin

from appliance.media.requests import Attachment, TranscriptionRequest, check
from appliance.plugin import BadRequest, ConfigError
from appliance.testing import make_runtime


def test_only_models_with_an_engine_have_tasks():
    models = [{"name": "words", "embedder": "onnx", "tasks": ["speech"]}]
    with pytest.raises(ConfigError, match=r"models\[0\]\.tasks: only a model with an engine"):
        make_runtime({"models": models})


def test_an_engine_that_passes_on_no_sound_has_no_tasks():
    models = [{"name": "m", "engine": "own", "tasks": ["speech"]}]
    plugin = engine_plugin(GeneratorEngine(lambda call: None))
    with pytest.raises(ConfigError, match=r"models\[0\]\.tasks: the engine own passes on no sound"):
        make_runtime({"models": models}, {"own": plugin})


def test_a_task_that_nobody_knows_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"models\[0\]\.tasks\[0\]"):
        make_runtime({"models": [{"name": "m", "engine": "scripted", "tasks": ["singing"]}]})


@pytest.mark.parametrize("reference", ["http://169.254.169.254/latest", "file:///etc/passwd", ""])
def test_D1_voices_to_compare_with_are_sent_along_and_never_fetched(reference):
    recording = Attachment("a.wav", None, b"RIFF")
    check(TranscriptionRequest(file=recording, model="m", known_speaker_references=["data:audio/wav;base64,UklGRg=="]))
    asked = TranscriptionRequest(file=recording, model="m", known_speaker_references=["data:,a", reference])
    with pytest.raises(BadRequest, match="must be data URLs"):
        check(asked)
