"""Traces from a language model: questions in, answers with states and attention out, scores.

``questions`` and ``named`` read what to ask, ``model`` loads who answers, ``plan`` says what it
takes, ``extract`` writes raw traces (``asks`` what is asked, ``decode`` the answers, ``states`` and
``attention`` what is behind them, ``work`` and ``journal`` batch after batch), ``score`` compares
answers with references (``measures``, ``judge``, ``abstain``, ``agreement``), ``recompute`` runs
stored traces again.
"""
