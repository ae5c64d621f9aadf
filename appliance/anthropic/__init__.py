"""Anthropic's Messages API on top of chats."""
