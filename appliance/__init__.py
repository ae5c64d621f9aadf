"""The appliance: OpenAI-compatible chat over your own models, answered from your own documents."""

__version__ = "0.1.0"
