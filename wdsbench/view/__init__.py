"""Pictures and summaries of traces and data sets.

Only the requested sample is decoded. Nothing is fetched over the network. Tokens are shown as text,
never as markup.
"""
