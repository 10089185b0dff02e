"""Pictures with captions as they lie on disk: one reader a file, all giving `Record`s; `names.open_records` opens any.

No torch: the readers need the standard library, numpy and Pillow.
"""
