"""Pictures with captions as they lie on disk: one reader per file, all give `Record`s; `names.open_records` opens any.

No torch: the readers need the standard library, numpy and Pillow.
"""
