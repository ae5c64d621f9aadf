"""``python -m appliance``."""

from appliance.cli import main

main()
