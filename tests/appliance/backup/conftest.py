"""Appliances with nothing in them."""

import pytest
from backup_kit import config_at

from appliance.storage.ids import new_id


@pytest.fixture
def new_config(tmp_path, request):
    """``new_config("sqlite")`` or ``new_config("postgresql")``: an appliance with nothing in it yet."""

    def make(kind: str = "sqlite"):
        folder = tmp_path / new_id("c")
        url = request.getfixturevalue("postgres").database() if kind == "postgresql" else None
        return config_at(folder, url)

    return make
