"""The Responses API on top of chats: any engine that can chat serves it."""
