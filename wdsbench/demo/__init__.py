"""The embedded model, its questions, and the main job on them.

``model/`` is a small Llama that ``tools/train_demo_model.py`` trained on an invented world; it
hallucinates for the same reasons as large models. ``questions.jsonl.gz`` has questions about that
world with reference answers. The demo takes a few minutes on two cores and needs no network.
"""
