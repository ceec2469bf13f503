"""Traces from a language model: questions in, greedy answers with states and attention out, scores.

``questions`` reads what to ask, ``model`` loads who answers, ``extract`` writes raw traces,
``score`` compares answers with references.
"""
