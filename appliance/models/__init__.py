"""The models that can be named, and their files on this machine."""
