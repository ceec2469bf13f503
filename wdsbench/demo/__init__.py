"""The embedded model, its questions, and the main job run over them.

``model/`` is a small Llama that ``tools/train_demo_model.py`` trained on a made-up world; it
hallucinates for the reasons that real models do. ``questions.jsonl.gz`` are questions about that
world with reference answers.
"""
