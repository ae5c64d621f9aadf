"""``python -m appliance``."""

from appliance.cli.main import main

main()
