"""Sound and pictures: what is asked of models that hear, speak or draw, and what comes back.

Engines that can are ``MediaEngine`` too, and ``models[].tasks`` says what a model is for. Bodies are OpenAI's.
"""
