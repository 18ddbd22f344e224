"""The two jobs that version 0.1.0 documented for import keep those names here.

The jobs themselves live in a folder each beside this one.
"""
